/*
 * Gathers and reductions of FSDP on NCCL. Each is enqueued on a stream as a
 * whole, with the copies before and after it (kernels.h).
 *
 * A list of parts says what is moved; NCCL gets it as one group. There is one
 * part for a bucket that lies flat, rank after rank; or there is one for each
 * parameter whose chunks are adjacent, so that nothing has to be copied out
 * ("coalesced"). All addresses are plain addresses of this device; plans and
 * the allocation of memory are matters of the caller.
 *
 * Calls return when the work is on the stream. Before that NCCL may need to
 * communicate with the other ranks, for instance at the first collective; the
 * call waits for this (nccl_comm.h: timeout_ms). After an error other than
 * -EINVAL the communicator must be aborted. -EINVAL means that a list or dtype
 * is invalid and nothing was enqueued.
 */
#pragma once
#include "cuda/kernels.h"
#include "cuda/nccl_comm.h"

/*
 * `n_shards` chunks of `numel` elements each, rank after rank, and one chunk:
 * this rank's. It may lie in its place among the others (in place), or apart
 * from them all; any other overlap is an error.
 *
 * A chunk's bytes should be a multiple of 16: NCCL is much slower with others.
 * numel 0 is fine.
 */
struct nccl_part {
	CUdeviceptr chunk, all;
	uint64_t numel;
};

/*
 * Shards to whole parameters, over n_shards ranks. In this order:
 *
 *   copy_in   the rank's chunks, cast, to where the parts take them: into
 *             their places in `all`, or to a buffer
 *   parts     chunk -> all
 *   copy_out  what was gathered, to whole parameters
 */
struct nccl_gather {
	const struct kernels_launch *copy_in; /* NULL: none */
	const struct nccl_part *parts;
	uint32_t n_parts;
	uint32_t dtype;                        /* of the parts; any */
	const struct kernels_launch *copy_out; /* NULL: none */
};
int nccl_gather(struct nccl_comm *comm, const struct nccl_gather *gather,
		CUstream stream, struct error *err);

/* Elements that are summed over the replicas where they lie. */
struct nccl_sum {
	CUdeviceptr address;
	uint64_t numel;
};

enum nccl_op {
	NCCL_OP_SUM,
	NCCL_OP_AVG,        /* by the ranks that take part */
	NCCL_OP_PREMUL_SUM, /* each input times a factor */
};

/*
 * Gradients of this rank to the reduced chunks that are its own. In this order,
 * each step only where there is something to do:
 *
 *   chunk_cat  whole gradients, cast and pre-divided (by its factor), to `all`
 *   parts      all -> chunk, by scatter_op over n_shards ranks
 *   add        chunks to sums that are kept between reductions
 *   sums       by reduce_op over n_replicas ranks, in place
 *   grad_out   post-divided (by its factor) and cast, to the gradients
 *
 * Steps that are to overlap others go on a stream of their own: two calls with
 * some of the steps each, and an event between the streams.
 *
 * NCCL sums in the reduce dtype and in an order of its own. A premul factor is
 * rounded to the dtype: where there is a chunk_cat, its factor and
 * NCCL_OP_SUM are more exact.
 */
struct nccl_reduce {
	uint32_t dtype; /* of parts and sums: enum dtype, but no bool, 16-bit
			   integers, 8-bit floats or complex */
	const struct kernels_launch *chunk_cat; /* NULL: none */
	const struct nccl_part *parts;
	uint32_t n_parts;
	enum nccl_op scatter_op;
	double premul;                    /* of NCCL_OP_PREMUL_SUM */
	const struct kernels_launch *add; /* NULL: none */
	const struct nccl_sum *sums;
	uint32_t n_sums;                       /* 0 with one replica */
	enum nccl_op reduce_op;                /* not NCCL_OP_PREMUL_SUM */
	const struct kernels_launch *grad_out; /* NULL: none */
};
int nccl_reduce(struct nccl_comm *comm, const struct nccl_reduce *reduce,
		CUstream stream, struct error *err);
