/*
 * Computes with shapes and strides that come from outside.
 *
 * All products are limited to 2^62, so that the sum or difference of two never
 * overflows an int64_t.
 */
#include "proto/tensor.h"

#include "proto/error.h"
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#define LIMIT (UINT64_C(1) << 62)

static const struct {
	const char *name;
	uint32_t size;
} dtypes[DTYPE_MAX + 1] = {
	[DTYPE_BOOL] = {"bool", 1},       [DTYPE_U8] = {"u8", 1},
	[DTYPE_I8] = {"i8", 1},           [DTYPE_U16] = {"u16", 2},
	[DTYPE_I16] = {"i16", 2},         [DTYPE_U32] = {"u32", 4},
	[DTYPE_I32] = {"i32", 4},         [DTYPE_U64] = {"u64", 8},
	[DTYPE_I64] = {"i64", 8},         [DTYPE_F16] = {"f16", 2},
	[DTYPE_BF16] = {"bf16", 2},       [DTYPE_F32] = {"f32", 4},
	[DTYPE_F64] = {"f64", 8},         [DTYPE_F8_E4M3] = {"f8_e4m3", 1},
	[DTYPE_F8_E5M2] = {"f8_e5m2", 1}, [DTYPE_C64] = {"c64", 8},
	[DTYPE_C128] = {"c128", 16},
};

uint32_t dtype_size(uint32_t dtype)
{
	return dtype <= DTYPE_MAX ? dtypes[dtype].size : 0;
}

const char *dtype_name(uint32_t dtype)
{
	return dtype_size(dtype) ? dtypes[dtype].name : "?";
}

bool dtype_is_float(uint32_t dtype)
{
	return dtype >= DTYPE_F16 && dtype <= DTYPE_F64;
}

uint32_t dtype_accumulator(uint32_t dtype)
{
	switch (dtype) {
	case DTYPE_F16:
	case DTYPE_BF16:
	case DTYPE_F32:
		return DTYPE_F32;
	case DTYPE_F64:
		return DTYPE_F64;
	case DTYPE_I8:
	case DTYPE_I16:
	case DTYPE_I32:
	case DTYPE_I64:
		return DTYPE_I64;
	case DTYPE_U8:
	case DTYPE_U16:
	case DTYPE_U32:
	case DTYPE_U64:
		return DTYPE_U64;
	default:
		return 0;
	}
}

uint32_t dtype_by_name(const char *name)
{
	for (uint32_t i = 1; i <= DTYPE_MAX; i++) {
		if (strcmp(dtypes[i].name, name) == 0)
			return i;
	}
	return 0;
}

/* Returns a * b, or a value above LIMIT if the product is larger. Both factors
 * are at most INT64_MAX. */
static uint64_t multiply(uint64_t a, uint64_t b)
{
	uint64_t product;

	if (__builtin_mul_overflow(a, b, &product) || product > LIMIT)
		return LIMIT + 1;
	return product;
}

/*
 * The type may be invalid: for a shape whose product overflows it sets strides
 * that tensor_type_check() refuses.
 */
void tensor_type_contiguous(struct tensor_type *type)
{
	uint64_t stride = 1;
	uint32_t i = type->n_dims;

	if (i > TENSOR_MAX_DIMS)
		i = TENSOR_MAX_DIMS;
	while (i-- > 0) {
		type->strides[i] = (int64_t)stride;
		if (type->shape[i] > 1)
			stride = multiply(stride, (uint64_t)type->shape[i]);
	}
}

/* Strides of dimensions with one element are not used, so they may have any
 * value. */
bool tensor_type_is_contiguous(const struct tensor_type *type)
{
	int64_t stride = 1;
	bool is_contiguous = true;

	for (uint32_t i = type->n_dims; i-- > 0;) {
		if (type->shape[i] == 0)
			return true;
		if (type->shape[i] == 1)
			continue;
		if (type->strides[i] != stride)
			is_contiguous = false;
		/* no stride is negative, so a larger one is not contiguous */
		if (__builtin_mul_overflow(stride, type->shape[i], &stride))
			stride = -1;
	}
	return is_contiguous;
}

static int check_dim(const struct tensor_type *type, uint32_t i,
		     struct error *err)
{
	if (type->shape[i] < 0)
		return error_set(err, -EINVAL,
				 "dimension %u has the size %" PRId64
				 "; sizes are 0 or more",
				 i, type->shape[i]);
	if (type->strides[i] < 0)
		return error_set(err, -EINVAL,
				 "dimension %u has the stride %" PRId64
				 "; strides are 0 or more",
				 i, type->strides[i]);
	return 0;
}

int tensor_type_check(const struct tensor_type *type, uint64_t *ret_span,
		      struct error *err)
{
	uint64_t size = dtype_size(type->dtype), bytes = size, span = size;
	bool is_empty = false;

	if (!size)
		return error_set(err, -EINVAL, "there is no dtype %u",
				 type->dtype);
	if (type->n_dims > TENSOR_MAX_DIMS)
		return error_set(
			err, -EINVAL,
			"there are %u dimensions, but a tensor has at most %u",
			type->n_dims, TENSOR_MAX_DIMS);
	for (uint32_t i = 0; i < type->n_dims; i++) {
		uint64_t n, stride;
		int r = check_dim(type, i, err);

		if (r < 0)
			return r;
		n = (uint64_t)type->shape[i];
		stride = (uint64_t)type->strides[i];
		if (n == 0) {
			is_empty = true;
			n = 1;
		}
		bytes = multiply(bytes, n);
		/* The stride is checked by itself, too, because even an unused
		 * one can be printed. */
		stride = multiply(stride, size);
		span += multiply(stride, n - 1);
		if (bytes > LIMIT || stride > LIMIT || span > LIMIT)
			return error_set(err, -EOVERFLOW,
					 "the tensor reaches beyond 2^62 bytes "
					 "with its dimension %u",
					 i);
	}
	*ret_span = is_empty ? 0 : span;
	return 0;
}

uint64_t tensor_type_numel(const struct tensor_type *type)
{
	uint64_t n = 1;

	for (uint32_t i = 0; i < type->n_dims; i++)
		n *= (uint64_t)type->shape[i];
	return n;
}
