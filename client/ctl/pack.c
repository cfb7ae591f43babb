/*
 * Writes the elements of a tensor in row-major order. The last dimensions that
 * are contiguous form a run, and an index counts through the other dimensions.
 * Long runs are written directly from the tensor; short runs and casts go
 * through a small buffer.
 */
#include "client/ctl/pack.h"

#include "client/ctl/cast.h"
#include "proto/tensor.h"

#include <stdbool.h>
#include <string.h>

#define STAGING_SIZE 65536

struct pack {
	uint32_t dtype, cast;
	pack_fn *write;
	void *data;
	size_t used;
	_Alignas(float) uint8_t staging[STAGING_SIZE];
};

static int flush(struct pack *pack, struct error *err)
{
	size_t size = pack->used;

	pack->used = 0;
	return size ? pack->write(pack->data, pack->staging, size, err) : 0;
}

/* Copies or casts as many of the `n` elements as fit, and returns their
 * number. */
static uint64_t stage(struct pack *pack, const uint8_t *src, uint64_t n)
{
	size_t size = dtype_size(pack->cast ? pack->cast : pack->dtype);
	uint64_t room = (STAGING_SIZE - pack->used) / size;
	uint8_t *dst = pack->staging + pack->used;

	if (n > room)
		n = room;
	if (pack->cast)
		cast_to_f32(pack->dtype, src, (float *)(void *)dst, n);
	else
		memcpy(dst, src, n * size);
	pack->used += n * size;
	return n;
}

static int write_run(struct pack *pack, const uint8_t *src, uint64_t n,
		     struct error *err)
{
	size_t size = dtype_size(pack->dtype);
	int r;

	if (!pack->cast && n * size >= STAGING_SIZE) {
		r = flush(pack, err);
		if (r < 0)
			return r;
		return pack->write(pack->data, src, n * size, err);
	}
	while (n) {
		uint64_t n_staged = stage(pack, src, n);

		src += n_staged * size;
		n -= n_staged;
		if (n == 0)
			break;
		r = flush(pack, err);
		if (r < 0)
			return r;
	}
	return 0;
}

/* Advances the index of the outer dimensions. Returns false at the end. */
static bool step(const struct tensor_type *type, uint32_t n_outer,
		 int64_t *index)
{
	for (uint32_t i = n_outer; i-- > 0;) {
		if (++index[i] < type->shape[i])
			return true;
		index[i] = 0;
	}
	return false;
}

int pack_write(const void *elements, const struct tensor_type *type,
	       uint32_t cast, pack_fn *write, void *data, struct error *err)
{
	struct pack pack = {.dtype = type->dtype,
			    .cast = cast,
			    .write = write,
			    .data = data};
	int64_t index[TENSOR_MAX_DIMS] = {0}, run = 1;
	uint32_t n_outer = type->n_dims;
	int r;

	if (tensor_type_numel(type) == 0)
		return 0;
	while (n_outer && (type->strides[n_outer - 1] == run ||
			   type->shape[n_outer - 1] == 1))
		run *= type->shape[--n_outer];
	do {
		int64_t at = 0;

		for (uint32_t i = 0; i < n_outer; i++)
			at += index[i] * type->strides[i];
		r = write_run(&pack,
			      (const uint8_t *)elements +
				      (size_t)at * dtype_size(type->dtype),
			      (uint64_t)run, err);
		if (r < 0)
			return r;
	} while (step(type, n_outer, index));
	return flush(&pack, err);
}
