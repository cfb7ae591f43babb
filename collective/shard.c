/*
 * This file computes how a parameter is cut. It only computes sizes, and
 * touches no memory.
 *
 * As in proto/tensor, no size is above 2^62 bytes, padding included, so callers
 * can add two sizes without a check.
 */
#include "collective/shard.h"
#include "proto/error.h"
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#define LIMIT (UINT64_C(1) << 62)

/* Lists the dimensions that could be cut, for an error sentence. */
#define LIST_SIZE 64

static void list_cuttable(const struct tensor_type *type, uint32_t n_ranks,
			  char *list)
{
	int n = snprintf(list, LIST_SIZE, "0");

	for (uint32_t i = 1; i < type->n_dims; i++) {
		if (type->shape[i] % n_ranks == 0)
			n += snprintf(list + n, LIST_SIZE - (size_t)n, ", %u",
				      i);
	}
}

/* Returns the type that is cut: a 0-d type is cut as a 1-d type of one
 * element. */
static void widen(const struct tensor_type *type, struct tensor_type *ret)
{
	*ret = *type;
	if (type->n_dims == 0) {
		ret->n_dims = 1;
		ret->shape[0] = 1;
		ret->strides[0] = 1;
	}
}

static int check_dim(const struct tensor_type *type, int32_t dim,
		     uint32_t n_ranks, uint32_t *ret_dim, struct error *err)
{
	int64_t n_dims = type->n_dims, i = dim < 0 ? dim + n_dims : dim;
	char list[LIST_SIZE];

	if (i < 0 || i >= n_dims)
		return error_set(
			err, -EINVAL,
			"it has no dimension %d to shard; it has %" PRId64
			" dimensions",
			dim, n_dims);
	if (i > 0 && type->shape[i] % n_ranks != 0) {
		list_cuttable(type, n_ranks, list);
		return error_set(err, -EINVAL,
				 "dimension %" PRId64 " has the size %" PRId64
				 ", which %u ranks cannot share evenly; only "
				 "dimension 0 may be uneven (cut along %s)",
				 i, type->shape[i], n_ranks, list);
	}
	*ret_dim = (uint32_t)i;
	return 0;
}

/* Computes the sizes of one padded chunk and of all chunks. Returns false if
 * they exceed the limit. The sizes of the type itself are known to be within
 * it. */
static bool pad(struct shard *shard, uint32_t element_size)
{
	uint64_t chunk = (uint64_t)shard->chunk, bytes;

	if (__builtin_mul_overflow(chunk, shard->n_rows, &chunk) ||
	    __builtin_mul_overflow(chunk, shard->row_numel,
				   &shard->chunk_numel) ||
	    __builtin_mul_overflow(shard->chunk_numel, shard->n_ranks,
				   &shard->padded_numel) ||
	    __builtin_mul_overflow(shard->padded_numel, element_size, &bytes))
		return false;
	return bytes <= LIMIT;
}

static void measure(const struct tensor_type *type, struct shard *shard)
{
	int64_t n_ranks = shard->n_ranks;

	shard->size = type->shape[shard->dim];
	shard->chunk = (shard->size + n_ranks - 1) / n_ranks;
	shard->n_rows = 1;
	shard->row_numel = 1;
	for (uint32_t i = 0; i < type->n_dims; i++) {
		if (i < shard->dim)
			shard->n_rows *= (uint64_t)type->shape[i];
		else if (i > shard->dim)
			shard->row_numel *= (uint64_t)type->shape[i];
	}
	shard->numel = tensor_type_numel(type);
}

int shard_make(const struct tensor_type *type, int32_t dim, uint32_t n_ranks,
	       struct shard *ret, struct error *err)
{
	struct shard shard = {.n_ranks = n_ranks};
	struct tensor_type wide;
	uint64_t span;
	int r = tensor_type_check(type, &span, err);

	if (r < 0)
		return r;
	if (!tensor_type_is_contiguous(type))
		return error_set(err, -EINVAL,
				 "it is not contiguous, so it cannot be "
				 "sharded; make a contiguous copy first");
	if (n_ranks == 0)
		return error_set(err, -EINVAL,
				 "it cannot be sharded among 0 ranks");
	widen(type, &wide);
	r = check_dim(&wide, dim, n_ranks, &shard.dim, err);
	if (r < 0)
		return r;
	measure(&wide, &shard);
	if (!pad(&shard, dtype_size(type->dtype)))
		return error_set(
			err, -EOVERFLOW,
			"with padding for %u ranks it has more than 2^62 bytes",
			n_ranks);
	*ret = shard;
	return 0;
}

int64_t shard_size_of(const struct shard *shard, uint32_t rank)
{
	int64_t left;

	assert(rank < shard->n_ranks);
	left = shard->size - (int64_t)rank * shard->chunk;
	if (left < 0)
		return 0;
	return left < shard->chunk ? left : shard->chunk;
}
