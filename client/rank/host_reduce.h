/*
 * Reductions on host memory, done by the ranks themselves, by the board
 * (shm/board.h) and without the broker.
 *
 * A rank hands in its input: it says on the board which memory that is and how
 * it wants it reduced. When all have, whoever waits takes pieces of the work
 * (shm/pieces.h), the ones that nobody has begun, and then waits for those that
 * others have. So a rank that has handed in and computes holds up nobody. A
 * piece is what fsdp-worker would do of the same range (reduce.h of
 * collective/host), so the bits are the same whoever does it.
 *
 * Reductions are done one after the other, in the common order; an input may be
 * written again when all of its reduction is done. Each rank compares what the
 * others have handed in before it does anything of it, and nothing that they
 * wrote is an index, a size or an address here.
 *
 * Chosen once for a run, for all of its ranks: comm_reply.direct.
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

/* One that this rank has handed in. */
struct handed_in {
	struct fsdp_group *group;
	uint64_t sequence; /* of the group */
	struct board_input input;
	struct fsdp_tensor *memory; /* of the input; the reducer's */
	struct reduce reduce;       /* without the others' inputs */
	int64_t since_ns;
	int64_t complete_ns; /* since when this rank knows that all have handed
			      * in; 0: it does not */
};

/* Of a communicator. */
struct reducer {
	const struct kernels *kernels;
	struct inputs inputs;
	uint32_t n_groups; /* that the run has */
	uint32_t number;   /* of the last that this rank has handed in */
	uint32_t done;     /* all up to this are */
	int64_t done_ns;   /* since when */
	struct handed_in list[BOARD_REDUCTIONS]; /* by number */
};

/* With the broker's answer to the join; `comm->reducer` stays NULL where ranks
 * do not reduce themselves. */
int host_reduce_init(struct fsdp_comm *comm, uint32_t direct, uint32_t n_inputs,
		     struct error *err);
void host_reduce_end_handles(struct fsdp_comm *comm);
void host_reduce_deinit(struct fsdp_comm *comm);

/* As the public functions. */
int host_reduce_input(struct fsdp_group *group, int32_t timeout_ms,
		      struct error *err);
int host_reduce_begin(struct fsdp_group *group,
		      const struct fsdp_reduce_options *options,
		      struct fsdp_work *ret, struct error *err);
int host_reduce_wait(struct fsdp_group *group, uint64_t sequence,
		     int32_t timeout_ms, struct error *err);

/* May this rank commit? Does what is left to do, unless others have not handed
 * in: -EBUSY; or if they reduce next: -EINVAL. */
int host_reduce_check_commit(struct fsdp_comm *comm, struct error *err);
