/*
 * Barriers, by the board that the ranks of a run share (run_board.h).
 *
 * A rank counts its barriers, says on the board how far it has come, and waits
 * until all others have come as far. A wait ends early when the verdict says
 * that the run is over, or when a rank that has not come has left.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

/* Of one communicator. */
struct barrier {
	uint32_t number;  /* of the last one that this rank has come to */
	bool is_waiting;  /* there, and was not let through yet */
	int64_t since_ns; /* since when, if it is */
};
