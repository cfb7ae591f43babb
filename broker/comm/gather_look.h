/*
 * What the board of a run shows about gathers that its ranks do by themselves
 * (shm/gathers.h). It is for inspection only, since every rank may write it.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct comm;
struct comms;
struct group;
struct limiter_state;

struct gather_totals {
	uint64_t n_unshards, n_limited, n_gathers, n_bytes;
};

/* Add the gathers in flight and those that wait for the limiter. */
void gathers_look_up(const struct comm *comm, struct limiter_state *ret);

/* Has a rank this group unsharded in memory that was chosen for it? */
bool gather_is_on_board(const struct group *group);

/* Add what all runs have counted, including former ones. */
void gathers_add_totals(const struct comms *comms, struct gather_totals *ret);
/* The run ends: remember what it counted. */
void gathers_end_totals(struct comm *comm);
