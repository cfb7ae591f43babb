/*
 * On host memory the ranks reduce by themselves, on the board (shm/board.h) and
 * without the broker.
 *
 * A rank hands in its input: it writes on the board which memory that is and
 * how it must be reduced. When all have done so, a rank that waits takes pieces
 * of the work (shm/pieces.h) that no rank has begun, and then waits for the
 * pieces of others. So a rank that has handed in and computes delays no other
 * rank. A piece is computed as fsdp-worker would compute it (reduce.h of
 * collective/host), so the bits do not depend on the process that does it.
 *
 * Reductions are done one after another, in the common order. An input may be
 * written again when its whole reduction is done. Each rank checks what the
 * others have handed in before it uses it; nothing that they wrote becomes an
 * index, a size or an address here.
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

/* a reduction that this rank has handed in */
struct handed_in {
	struct fsdp_group *group;
	uint64_t sequence; /* of the reductions of the group */
	struct board_input input;
	/* memory of the input, which the reducer owns */
	struct fsdp_tensor *memory;
	struct reduce reduce; /* without the others' inputs */
	int64_t since_ns;
	/* since when this rank has waited for pieces of others; 0: it has not
	 */
	int64_t waits_ns;
};

/* the reductions of one communicator */
struct reducer {
	const struct kernels *kernels;
	struct inputs inputs;
	uint32_t n_groups; /* groups that the run has */
	/* of the last reduction that this rank has handed in */
	uint32_t number;
	uint32_t done;   /* all reductions up to this one are done */
	int64_t done_ns; /* when the last of them was done */
	struct handed_in list[BOARD_REDUCTIONS]; /* by number */
};

/* Call this with the broker's reply to the join. `comm->reducer` stays NULL if
 * ranks do not reduce themselves. */
int host_reduce_init(struct fsdp_comm *comm, uint32_t direct, uint32_t n_inputs,
		     struct error *err);
void host_reduce_end_handles(struct fsdp_comm *comm);
void host_reduce_deinit(struct fsdp_comm *comm);

/* These do as the public functions. */
int host_reduce_input(struct fsdp_group *group, int32_t timeout_ms,
		      struct error *err);
int host_reduce_begin(struct fsdp_group *group,
		      const struct fsdp_reduce_options *options,
		      struct fsdp_work *ret, struct error *err);
int host_reduce_wait(struct fsdp_group *group, uint64_t sequence,
		     int32_t timeout_ms, struct error *err);
/* -EAGAIN: the reduction is not done yet; one piece was, if there was one. */
int host_reduce_test(struct fsdp_group *group, uint64_t sequence,
		     struct error *err);

/* May this rank commit? This does the rest of the work. -EBUSY: other ranks
 * have not handed in. -EINVAL: other ranks reduce next. */
int host_reduce_check_commit(struct fsdp_comm *comm, struct error *err);
