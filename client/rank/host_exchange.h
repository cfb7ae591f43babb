/*
 * Exchanges: every collective on the callers' tensors is one. Each rank has
 * bytes for the others and gets bytes from them, through the boxes of the run
 * (shm/boxes.h), in as many rounds as the largest share of a rank needs.
 *
 * A rank has either the same bytes for all ranks, so that each round fills a
 * whole slot, or different bytes for each rank, which divide the slot. It
 * copies the bytes that it gets, or folds the bytes of all ranks into one
 * result.
 *
 * A large tensor that is reduced is divided into one share for each rank. Each
 * rank folds its share into the block of its own slot that is for itself, and
 * puts the next round when it has done so. Then others copy it from there.
 *
 * Before a rank copies bytes it compares the calls of all ranks: the kind, the
 * dtype and so on, and the number of bytes that a rank has for it. It only uses
 * its own sizes and addresses.
 */
#pragma once
#include "client/fsdp_comm.h"
#include "collective/host/fold.h"
#include "shm/boxes.h"
#include <stdbool.h>
#include <stdint.h>

struct error;
struct fsdp_comm;

/* These numbers are written on the board; box_call.c names them. */
enum exchange_kind {
	EXCHANGE_BROADCAST = 1,
	EXCHANGE_ALL_REDUCE = 2,
	EXCHANGE_REDUCE = 3,
	EXCHANGE_ALL_GATHER = 4,
	EXCHANGE_GATHER = 5,
	EXCHANGE_SCATTER = 6,
	EXCHANGE_REDUCE_SCATTER = 7,
	EXCHANGE_ALL_TO_ALL = 8,
	/* Each rank folds a share. 9 was a large all-reduce in two exchanges.
	 * The kinds differ from those of small tensors, because the number of
	 * bytes for a rank can be the same in both. */
	EXCHANGE_LARGE_ALL_REDUCE = 10,
	EXCHANGE_LARGE_REDUCE = 11,
};

/* the value for kinds that have no root, or that do not reduce */
#define EXCHANGE_NONE UINT32_MAX

struct bytes {
	uint8_t *data;
	uint64_t size;
};

struct exchange {
	struct fsdp_comm *comm;
	uint32_t kind, dtype;
	uint32_t how, root; /* EXCHANGE_NONE if there is none */
	bool is_shared;     /* give[0] is for all ranks of `to` */
	uint64_t to;        /* mask of the ranks that get it */
	struct bytes give[FSDP_MAX_RANKS]; /* only read */
	/* from each rank; size 0: no bytes */
	struct bytes take[FSDP_MAX_RANKS];
	/* If this is not NULL, the bytes of all ranks, which have the same
	 * size, are folded into `result`, and `take` has no memory. */
	const struct fold *fold;
	uint8_t *result;
	/* `give` has the shares of one tensor, and `result` is the whole
	 * result, or NULL if this rank does not get it. */
	bool has_shares;
};

/* the exchanges of one communicator */
struct exchanges {
	uint32_t number; /* of the last exchange that this rank has begun */
	uint32_t round;  /* the last round that this rank has put */
};

/* Run the exchange. The run must have a board. Returns -ECONNABORTED if the run
 * is over, or -EINTR after a signal, which ends the run. */
int host_exchange_run(const struct exchange *exchange, struct error *err);
