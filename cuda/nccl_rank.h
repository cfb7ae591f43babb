/*
 * A rank on its device, as its own process and fsdp-worker have it: a
 * communicator, one stream for gathers and one for reductions, both of the
 * device's highest priority so that computation does not delay them; and, if
 * ranks are on several nodes, a check that all of them have equal values.
 */
#pragma once
#include "cuda/nccl_comm.h"

struct nccl_rank {
	const struct device *device;           /* NULL: nothing was opened */
	struct nccl_comm *comm;                /* owned; NULL: it has ended */
	CUstream gather_stream, reduce_stream; /* owned */
	uint32_t rank, n_world;
	CUdeviceptr words; /* owned; n_world + 1; 0: all ranks are on one node
			    */
};

/*
 * Make the streams, and begin to open the communicator (nccl_comm_poll()).
 * is_spanning: there are ranks on other nodes. After a failure, too,
 * nccl_rank_abort() and nccl_rank_free() are to follow.
 */
int nccl_rank_open(const struct nccl_comm_options *options, bool is_spanning,
		   struct nccl_rank *ret, struct error *err);

/*
 * Do all ranks of all nodes have the same value? The beginning is enqueued on
 * the gather stream; when that is done, the end says -EINVAL, with a rank that
 * has another one. Between ranks of one node there is nothing to compare.
 */
int nccl_rank_begin_verify(struct nccl_rank *rank, uint64_t value,
			   struct error *err);
int nccl_rank_end_verify(const struct nccl_rank *rank, uint64_t value,
			 const char *what, struct error *err);

/* Are both streams done? True also if the device has failed. */
bool nccl_rank_is_idle(const struct nccl_rank *rank);

/* Aborted or closed, and idle. What NCCL has not let go of is not freed:
 * neither the communicator, nor the streams, nor the words. */
void nccl_rank_free(struct nccl_rank *rank);
