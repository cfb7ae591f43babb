/*
 * Barriers, on the board that the ranks of a run share (run_board.h).
 *
 * A rank counts its barriers, writes on the board which one it has reached, and
 * waits until all others have reached it. A wait ends early when the verdict
 * says that the run is over, or when a rank that has not arrived has left.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

/* the barriers of one communicator */
struct barrier {
	uint32_t number;  /* of the last barrier that this rank has reached */
	bool is_waiting;  /* at that barrier, and not released yet */
	int64_t since_ns; /* start of the wait, if it waits */
};
