/*
 * A group on devices: what one rank does of its gathers and reductions.
 *
 * From the plan come the tables of the kernels, once; a gather or reduction is
 * then addresses, and work on a stream. The same for both executors: the rank's
 * own process, and fsdp-worker. It knows nothing of the broker.
 *
 * How a bucket is gathered (wire.h says which):
 *
 *   cast?  copy-in: the rank's chunks to its row, behind the whole parameters
 *   flat:  one all-gather of the rows to the wire, then copy-out to the whole
 *          parameters; else each chunk straight to its place in them
 *
 * and reduced: chunk-cat of the whole gradients to the wire, a reduce-scatter
 * that leaves the rank's row reduced where it lies, the sums of earlier
 * microbatches added to that, an all-reduce of the row over the replicas, and
 * grad-out to the gradients.
 */
#pragma once
#include "collective/plan.h"
#include "cuda/nccl_collective.h"

struct device_group; /* opaque */

/* `plan` (is_per_rank) and `device` are borrowed and outlive it; `rank` is that
 * of the world. Waits for the device, so not behind a stream that waits. */
int device_group_new(const struct plan *plan, const struct device *device,
		     uint32_t rank, struct device_group **ret,
		     struct error *err);
/* None of its work may be under way. NULL is fine. */
void device_group_free(struct device_group *group);

/* Make the parameters whole: from this rank's shards (committed), into `full`,
 * which has the tail behind it. */
int device_group_gather(struct device_group *group, struct nccl_comm *comm,
			CUdeviceptr shards, CUdeviceptr full, CUstream stream,
			struct error *err);

enum device_reduce_flags {
	DEVICE_REDUCE_ACCUMULATE = 1,  /* add to the gradients that are there */
	DEVICE_REDUCE_PARTIAL_IN = 2,  /* `partial` holds sums to add */
	DEVICE_REDUCE_PARTIAL_OUT = 4, /* stop before the all-reduce: write
					  `partial`, leave the gradients */
};

struct device_reduce {
	uint32_t flags; /* enum device_reduce_flags */
	bool has_factor, is_sum_forced;
	double factor;     /* divide.h */
	CUdeviceptr input; /* whole gradients, with the tail behind them */
	CUdeviceptr grads, partial; /* partial: 0 without replicas */
};
int device_group_reduce(struct device_group *group, struct nccl_comm *comm,
			const struct device_reduce *reduce, CUstream stream,
			struct error *err);
