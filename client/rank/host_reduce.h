/*
 * Reductions by the ranks themselves, on host memory and on the board
 * (shm/board.h), without the broker.
 *
 * A rank submits its input: it writes on the board which memory that is and how
 * it must be reduced. When all ranks have done so, a rank that waits does
 * pieces of the work (shm/pieces.h) that no rank has begun, and then waits for
 * the pieces of other ranks. So a rank that has submitted and computes does not
 * delay other ranks. A piece is computed in the same way as by fsdp-worker
 * (reduce.h of collective/host), so the bits do not depend on the process that
 * does it.
 *
 * Reductions are done one after another, in the common order. An input may be
 * written again when its whole reduction is done. Each rank checks the inputs
 * of the others before it uses them; no value that they wrote is used as an
 * index, a size or an address.
 *
 * comm_reply.direct says whether ranks reduce, once for a run and for all of
 * its ranks.
 */
#pragma once
#include "client/fsdp_comm.h"
#include "client/rank/inputs.h"
#include "collective/host/reduce.h"
#include <stdbool.h>
#include <stdint.h>

struct error;
struct fsdp_comm;
struct fsdp_group;

/* a reduction that this rank has submitted */
struct handed_in {
	struct fsdp_group *group;
	uint64_t sequence; /* number within the group */
	struct board_input input;
	/* memory of the input, which the reducer owns */
	struct fsdp_tensor *memory;
	struct reduce reduce; /* without the inputs of other ranks */
	int64_t since_ns;
	/* start of the wait for pieces of other ranks; 0: it does not wait
	 * yet */
	int64_t waits_ns;
};

/* the reductions of one communicator */
struct reducer {
	const struct kernels *kernels;
	struct inputs inputs;
	/* of the last reduction that this rank has submitted */
	uint32_t number;
	uint32_t done;   /* all reductions up to this one are done */
	int64_t done_ns; /* when the last of them was done */
	struct handed_in list[BOARD_REDUCTIONS]; /* by number */
};

/* Make the reducer of a communicator, after the broker's reply to the join.
 * `comm->reducer` remains NULL if the ranks do not reduce by themselves. */
int host_reduce_init(struct fsdp_comm *comm, uint32_t direct, uint32_t n_inputs,
		     struct error *err);
void host_reduce_end_handles(struct fsdp_comm *comm);
void host_reduce_deinit(struct fsdp_comm *comm);

/* Implement the public functions. */
int host_reduce_input(struct fsdp_group *group, int32_t timeout_ms,
		      struct error *err);
int host_reduce_begin(struct fsdp_group *group,
		      const struct fsdp_reduce_options *options,
		      struct fsdp_work *ret, struct error *err);
int host_reduce_wait(struct fsdp_group *group, uint64_t sequence,
		     int32_t timeout_ms, struct error *err);
/* Returns -EAGAIN if the reduction is not done yet. One piece was then done, if
 * there was one to do. */
int host_reduce_test(struct fsdp_group *group, uint64_t sequence,
		     struct error *err);

/* Check that this rank may commit, and do the rest of the work. Returns -EBUSY
 * if other ranks have not submitted, and -EINVAL if other ranks reduce next. */
int host_reduce_check_commit(struct fsdp_comm *comm, struct error *err);
