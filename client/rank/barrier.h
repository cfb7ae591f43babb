/*
 * Barriers use the board that the ranks of a run share (run_board.h).
 *
 * A rank counts its barriers, says on the board how far it has come, and waits
 * until all others have come as far. A wait ends early when the verdict says
 * that the run is over, or when a rank that has not come has left.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

/* the barriers of one communicator */
struct barrier {
	uint32_t number;  /* of the last barrier to which this rank has come */
	bool is_waiting;  /* at that barrier, and not released yet */
	int64_t since_ns; /* since when it waits, if it does */
};
