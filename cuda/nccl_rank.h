/*
 * A rank on its device. Its own process and fsdp-worker both use this code: a
 * communicator; one stream for gathers and one for reductions, both with the
 * device's highest priority so that computation does not delay them; and, if
 * ranks are on several nodes, a check that all of them have equal values.
 */
#pragma once
#include "cuda/nccl_comm.h"

struct nccl_rank {
	const struct device *device;           /* NULL if nothing was opened */
	struct nccl_comm *comm;                /* owned; NULL if it has ended */
	CUstream gather_stream, reduce_stream; /* owned */
	uint32_t rank, n_world;
	/* owned; n_world + 1 words, or 0 if all ranks are on one node */
	CUdeviceptr words;
};

/*
 * Makes the streams, and begins to open the communicator (nccl_comm_poll()).
 * `is_spanning` says that there are ranks on other nodes. Even after a failure
 * the caller must end the communicator (nccl_comm_abort()) and call
 * nccl_rank_free().
 */
int nccl_rank_open(const struct nccl_comm_options *options, bool is_spanning,
		   struct nccl_rank *ret, struct error *err);

/*
 * Check that all ranks of all nodes have the same value.
 * nccl_rank_begin_verify() enqueues the exchange on the gather stream; when
 * that is complete, nccl_rank_end_verify() returns -EINVAL with a rank that has
 * another value. If all ranks are on one node, both do nothing.
 */
int nccl_rank_begin_verify(struct nccl_rank *rank, uint64_t value,
			   struct error *err);
int nccl_rank_end_verify(const struct nccl_rank *rank, uint64_t value,
			 const char *what, struct error *err);

/* Returns whether both streams are done, or the device has failed. */
bool nccl_rank_is_idle(const struct nccl_rank *rank);

/* Frees a rank that was aborted or closed, and is idle. If NCCL still uses its
 * communicator, the streams and the words are not freed. */
void nccl_rank_free(struct nccl_rank *rank);
