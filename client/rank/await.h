/*
 * Waits of a rank for other ranks on the board, for as long as the caller, the
 * communicator and the run allow.
 *
 * A rank that is later than the communicator's time-out allows fails the run,
 * as in every other collective: the waiting rank tells the broker, and the
 * broker tells all others. The caller writes the error, which says what the
 * rank is late for.
 */
#pragma once
#include "shm/board.h"
#include <stddef.h>
#include <stdint.h>

struct error;
struct fsdp_comm;

struct await {
	enum board_goal goal;
	uint32_t number, n_pieces;
	uint32_t of; /* the rank, for BOARD_PUT and BOARD_TAKEN */
	const struct mail_wait *mail;      /* for BOARD_MAIL */
	const struct board_gather *gather; /* for BOARD_GATHER */
	int64_t since_ns; /* start of the time-out (bell_recent_ns()) */
	int64_t until_ns; /* end of the caller's time; INT64_MAX: none */
};

enum await_outcome {
	AWAIT_MET = 0,
	AWAIT_PENDING = 1, /* the caller's time is over */
	AWAIT_LATE = 2,    /* the communicator's time-out is over */
	AWAIT_LEFT = 3,    /* ranks have left */
};

/* Wait for other ranks. Returns an enum await_outcome, with a mask of the ranks
 * that caused it, -ECONNABORTED if the run is over, or -EINTR after a
 * signal. */
int await_ranks(struct fsdp_comm *comm, const struct await *await,
		uint64_t *ret_ranks, struct error *err);

/* Convert a time-out of the public functions to `until_ns`. */
int64_t await_until(int32_t timeout_ms);

/* Write names like "rank 1 (pid 5, trainer), like 2 other ranks," to `ret`, as
 * the subject of a sentence. Returns `ret` or a constant string. */
#define AWAIT_TEXT (BOARD_NAME_TEXT + 32)
const char *await_name_ranks(const struct fsdp_comm *comm, uint64_t ranks,
			     char ret[AWAIT_TEXT]);
