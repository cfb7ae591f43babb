/*
 * Barriers, by the board that the ranks of a run share (shm/board.h).
 *
 * A rank counts its barriers, says on the board how far it has come, and waits
 * until all others have come as far. The broker is asked once, for the board.
 * A wait ends early when the verdict says that the run is over, or when a rank
 * that has not come has left. A rank that is later than the communicator's
 * time-out allows fails the run, as in every other collective: who waits tells
 * the broker, and that all others.
 */
#pragma once
#include "shm/board.h"
#include <stdbool.h>
#include <stdint.h>

struct fsdp_comm;

/* Of one communicator. */
struct barrier {
	struct board board; /* page NULL: not asked for */
	uint32_t number;    /* of the last one that this rank has come to */
	bool is_waiting;    /* there, and was not let through yet */
	int64_t since_ns;   /* since when, if it is */
};

/* This rank leaves: others shall not wait for it. */
void barrier_leave(struct fsdp_comm *comm);

/* In a forked child nothing of the board is there. */
void barrier_deinit(struct barrier *barrier, const struct fsdp_comm *comm);
