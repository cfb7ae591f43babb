/*
 * One parameter is sharded over the ranks of a mesh.
 *
 * The rule is that of torch.chunk (FSDP2, _fsdp_param.py): a chunk has
 * ceil(size / ranks) steps of the shard dimension. The first ranks get a whole
 * chunk each, the next one gets the remainder, and the others get nothing. The
 * stored chunks are padded with zeros to the same size; the visible shard is
 * the first part of its chunk. If the shard dimension is not the first, the
 * number of ranks must divide its size.
 */
#pragma once
#include "proto/tensor.h"
#include <stdint.h>

struct error;

/* Describes how one parameter is cut. */
struct shard {
	uint32_t n_ranks;
	uint32_t dim;
	int64_t size;  /* of the shard dimension */
	int64_t chunk; /* steps of the shard dimension for each rank, padded */
	/* product of the sizes before `dim`; at least 1 unless one of them is
	 * 0 */
	uint64_t n_rows;
	/* elements of one step of `dim`: the product of the sizes after it */
	uint64_t row_numel;
	uint64_t numel; /* elements of the whole parameter, without padding */
	/* elements of one padded chunk: n_rows * chunk * row_numel */
	uint64_t chunk_numel;
	uint64_t padded_numel; /* n_ranks * chunk_numel */
};

/*
 * Computes how a parameter is cut along `dim`, which may be negative (counted
 * from the end). A 0-d parameter is cut as if it were 1-d with one element.
 * Returns -EINVAL if there is no such dimension; if it is not the first and
 * `n_ranks` does not divide its size (the sentence names dimensions that could
 * be cut); if the type is not contiguous; or if `n_ranks` is 0. Returns
 * -EOVERFLOW if the parameter has more than 2^62 bytes, including padding.
 */
int shard_make(const struct tensor_type *type, int32_t dim, uint32_t n_ranks,
	       struct shard *ret, struct error *err);

/* Returns how many steps of the shard dimension rank `rank` has: `chunk`,
 * fewer, or 0. */
int64_t shard_size_of(const struct shard *shard, uint32_t rank);
