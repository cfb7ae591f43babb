/*
 * Statistics from the board of a run about gathers that its ranks do by
 * themselves (shm/gathers.h). They are for inspection only, since every rank
 * may write to the board.
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

/* Returns whether a rank has this group unsharded in a buffer of the board. */
bool gather_is_on_board(const struct group *group);

/* Add the counts of all runs, including former ones. */
void gathers_add_totals(const struct comms *comms, struct gather_totals *ret);
/* Add the counts of a run that ends to those of former runs. */
void gathers_end_totals(struct comm *comm);
