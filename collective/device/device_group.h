/*
 * A device group is what one rank needs for the gathers and reductions of a
 * group on its device.
 *
 * The tables of the kernels are computed from the plan once; a gather or a
 * reduction then only sets addresses and enqueues work on a stream. Both
 * executors use this code: each rank's own process, and fsdp-worker. It does
 * not depend on the broker.
 *
 * A gather handles one bucket after another:
 *
 *   - If the bucket is cast, copy-in writes the rank's chunks to its row, which
 *     lies after the whole parameters.
 *   - If the bucket is flat, one all-gather collects the rows in the wire, and
 *     copy-out writes them to the whole parameters. Otherwise each chunk is
 *     gathered directly to its offset in the whole parameters.
 *
 * (wire_has_cast() and wire_is_flat() tell these cases apart.) A reduction does
 * these steps for each bucket:
 *
 *   - chunk-cat writes the whole gradients to the wire;
 *   - a reduce-scatter leaves the reduced row of the rank within the wire;
 *   - the sums of earlier microbatches are added to the row;
 *   - an all-reduce sums the rows of all replicas;
 *   - grad-out writes the row to the gradients.
 */
#pragma once
#include "collective/plan.h"
#include "cuda/nccl_collective.h"

struct device_group; /* opaque */

/* `plan` (with is_per_rank) and `device` are borrowed and must outlive the
 * group; `rank` is the rank in the world. This waits until the device is idle,
 * so the caller must not call it while a stream waits for the caller. */
int device_group_new(const struct plan *plan, const struct device *device,
		     uint32_t rank, struct device_group **ret,
		     struct error *err);
/* None of the group's work may be under way. `group` may be NULL. */
void device_group_free(struct device_group *group);

/* Enqueues a gather of all parameters from this rank's committed shards to
 * `full`. The tail (wire_gather_tail()) must follow the parameters there. */
int device_group_gather(struct device_group *group, struct nccl_comm *comm,
			CUdeviceptr shards, CUdeviceptr full, CUstream stream,
			struct error *err);

enum device_reduce_flags {
	DEVICE_REDUCE_ACCUMULATE = 1, /* add to the gradients that are there */
	DEVICE_REDUCE_PARTIAL_IN = 2, /* `partial` holds sums to add */
	/* stop before the all-reduce: write `partial`, do not touch the
	 * gradients */
	DEVICE_REDUCE_PARTIAL_OUT = 4,
};

struct device_reduce {
	uint32_t flags; /* enum device_reduce_flags */
	bool has_factor, is_sum_forced;
	double factor;              /* see divide.h */
	CUdeviceptr input;          /* whole gradients, followed by the tail */
	CUdeviceptr grads, partial; /* partial is 0 without replicas */
};
int device_group_reduce(struct device_group *group, struct nccl_comm *comm,
			const struct device_reduce *reduce, CUstream stream,
			struct error *err);
