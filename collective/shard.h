/*
 * Sharding one parameter over the ranks of a mesh.
 *
 * The rule is torch.chunk's (FSDP2, _fsdp_param.py): a chunk is
 * ceil(size / ranks) along the shard dimension; ranks get a chunk each, then
 * one the remainder, the rest nothing. What is stored is zero-padded to whole
 * chunks; the visible shard is its prefix. Along a dimension beyond the first
 * the size must divide evenly.
 */
#pragma once
#include "proto/tensor.h"
#include <stdint.h>

struct error;

/* How one parameter is cut. */
struct shard {
	uint32_t n_ranks;
	uint32_t dim;
	int64_t size;       /* of the dimension */
	int64_t chunk;      /* of the dimension, per rank, padded */
	uint64_t n_rows;    /* product of the sizes before `dim`; at least 1
			       unless one of them is 0 */
	uint64_t row_numel; /* elements of one step of `dim`: the product of the
			       sizes behind it */
	uint64_t numel;     /* of the whole parameter, without padding */
	uint64_t chunk_numel; /* of one padded chunk: n_rows * chunk * row_numel
			       */
	uint64_t padded_numel; /* n_ranks * chunk_numel */
};

/*
 * `dim` may be negative (from the end). A 0-d parameter is cut as if it were
 * 1-d of one element. -EINVAL: no such dimension, or a dimension beyond the
 * first that does not divide (the sentence says which would); not contiguous;
 * 0 ranks.
 * -EOVERFLOW: over 2^62 bytes, padding included.
 */
int shard_make(const struct tensor_type *type, int32_t dim, uint32_t n_ranks,
	       struct shard *ret, struct error *err);

/* Steps of the dimension that rank `rank` has: chunk, less, or 0. */
int64_t shard_size_of(const struct shard *shard, uint32_t rank);

/* The type of a rank's visible shard: contiguous, `dim` cut to
 * shard_size_of(). A 0-d parameter's is 1-d, since a rank may have nothing. */
void shard_type_of(const struct shard *shard, const struct tensor_type *type,
		   uint32_t rank, struct tensor_type *ret);
