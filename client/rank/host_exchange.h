/*
 * An exchange: what every collective on the callers' tensors is. Each rank has
 * bytes for the others and gets bytes of them, through the boxes of the run
 * (shm/boxes.h), in as many rounds as the largest of the ranks' shares takes.
 *
 * A rank has either the same bytes for all, of which a round takes a whole
 * slot, or different ones for each, among which a slot is divided. It copies
 * what it gets, or folds what all ranks have for it into one result.
 *
 * Before it copies anything a rank compares the calls of all: kind, dtype and
 * so on, and how many bytes a rank has for it. All sizes and addresses that it
 * works with are its own.
 */
#pragma once
#include "client/fsdp_comm.h"
#include "collective/host/fold.h"
#include "shm/boxes.h"
#include <stdbool.h>
#include <stdint.h>

struct error;
struct fsdp_comm;

/* Numbers of the board: what box_call.c names. */
enum exchange_kind {
	EXCHANGE_BROADCAST = 1,
	EXCHANGE_ALL_REDUCE = 2,
	EXCHANGE_REDUCE = 3,
	EXCHANGE_ALL_GATHER = 4,
	EXCHANGE_GATHER = 5,
	EXCHANGE_SCATTER = 6,
	EXCHANGE_REDUCE_SCATTER = 7,
	EXCHANGE_ALL_TO_ALL = 8,
};

/* Of kinds that have no root, or reduce nothing. */
#define EXCHANGE_NONE UINT32_MAX

struct bytes {
	uint8_t *data;
	uint64_t size;
};

struct exchange {
	struct fsdp_comm *comm;
	uint32_t kind, dtype;
	uint32_t how, root; /* EXCHANGE_NONE: none */
	bool is_shared;     /* give[0] is for all of `to` */
	uint64_t to;        /* mask of the ranks for whom it is, if so */
	struct bytes give[FSDP_MAX_RANKS]; /* only read */
	struct bytes take[FSDP_MAX_RANKS]; /* of each; size 0: nothing */
	/* Not NULL: what all ranks give, of one size, is folded into `result`,
	 * and `take` has no memory. */
	const struct fold *fold;
	uint8_t *result;
};

/* Of a communicator. */
struct exchanges {
	uint32_t number; /* of the last that this rank has begun */
	uint32_t round;  /* the last that it has put */
};

/* Do it. The run has a board. -ECONNABORTED: the run is over; -EINTR: it will
 * be. */
int host_exchange_run(const struct exchange *exchange, struct error *err);
