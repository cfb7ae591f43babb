/*
 * Gathers and reductions of FSDP on NCCL. Each is enqueued on a stream as a
 * whole, with the copies before and after it (kernels.h).
 *
 * A list of parts says what is moved; NCCL gets it as one group. A flat bucket
 * is a single part, with one rank after another. Otherwise there is a part for
 * each parameter whose chunks are adjacent, so that nothing has to be copied
 * out ("coalesced"). All addresses are plain addresses of this device; the
 * caller plans and allocates the memory.
 *
 * Calls return when the work is on the stream. Before that NCCL may need to
 * communicate with the other ranks, for instance at the first collective; the
 * call waits for this (timeout_ms in nccl_comm.h). After an error the
 * communicator must be aborted, because some of the work may be on the stream.
 */
#pragma once
#include "cuda/kernels.h"
#include "cuda/nccl_comm.h"

/*
 * `all` has n_shards chunks of `numel` elements each, one rank after another.
 * `chunk` is the chunk of this rank. It is either its place in `all` (in
 * place), or does not overlap `all`.
 *
 * The bytes of a chunk should be a multiple of 16, because NCCL is much slower
 * otherwise. `numel` may be 0.
 */
struct nccl_part {
	CUdeviceptr chunk, all;
	uint64_t numel;
};

/*
 * Gathers shards to whole parameters, over n_shards ranks, in this order:
 *
 *   copy_in   casts the rank's chunks to where the parts read them, which is
 *             in `all` or in a buffer
 *   parts     chunk -> all
 *   copy_out  casts gathered chunks to whole parameters
 */
struct nccl_gather {
	const struct kernels_launch *copy_in; /* may be NULL */
	const struct nccl_part *parts;
	uint32_t n_parts;
	uint32_t dtype; /* dtype of the parts; can be any */
	const struct kernels_launch *copy_out; /* may be NULL */
};
int nccl_gather(struct nccl_comm *comm, const struct nccl_gather *gather,
		CUstream stream, struct error *err);

/* Elements that are summed over the replicas in place. */
struct nccl_sum {
	CUdeviceptr address;
	uint64_t numel;
};

enum nccl_op {
	NCCL_OP_SUM,
	NCCL_OP_AVG,        /* divides by the number of ranks */
	NCCL_OP_PREMUL_SUM, /* multiplies each input by a factor */
};

/*
 * Reduces the gradients of this rank to its own chunks. The steps have this
 * order, and each is left out if it has nothing to do:
 *
 *   chunk_cat  whole gradients, cast and multiplied by its factor, to `all`
 *   parts      all -> chunk, by scatter_op over n_shards ranks
 *   add        chunks to sums that are kept between reductions, or back
 *   sums       by reduce_op over n_replicas ranks, in place
 *   grad_out   divided by its factor and cast, to the gradients
 *
 * To let steps overlap, the caller uses two calls on two streams, each with
 * some of the steps, and an event between the streams.
 *
 * NCCL sums in the reduce dtype and in an order of its own. It rounds a premul
 * factor to the dtype; if there is a chunk_cat, its factor and NCCL_OP_SUM are
 * more exact.
 */
struct nccl_reduce {
	/* enum dtype of parts and sums; not bool, 16-bit integers, 8-bit floats
	 * or complex numbers */
	uint32_t dtype;
	const struct kernels_launch *chunk_cat; /* may be NULL */
	const struct nccl_part *parts;
	uint32_t n_parts;
	enum nccl_op scatter_op;
	double premul;                    /* factor of NCCL_OP_PREMUL_SUM */
	const struct kernels_launch *add; /* may be NULL */
	const struct nccl_sum *sums;
	uint32_t n_sums;        /* 0 if there is one replica */
	enum nccl_op reduce_op; /* cannot be NCCL_OP_PREMUL_SUM */
	const struct kernels_launch *grad_out; /* may be NULL */
};
int nccl_reduce(struct nccl_comm *comm, const struct nccl_reduce *reduce,
		CUstream stream, struct error *err);
