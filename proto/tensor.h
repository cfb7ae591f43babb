/*
 * What a tensor looks like: dtype, shape, strides, and the checks that nobody
 * may skip, since all three come from outside.
 *
 * Shapes and strides count elements; strides are explicit once a type was
 * checked (tensor_type_contiguous() fills them for the usual case). A 0-d
 * tensor has one element; a tensor with a 0 in its shape has none. Both are
 * legal.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct error;

#define TENSOR_MAX_DIMS 8

/* The numbers are on the wire and in the catalog: append only. */
enum dtype {
	DTYPE_BOOL = 1,
	DTYPE_U8 = 2,
	DTYPE_I8 = 3,
	DTYPE_U16 = 4,
	DTYPE_I16 = 5,
	DTYPE_U32 = 6,
	DTYPE_I32 = 7,
	DTYPE_U64 = 8,
	DTYPE_I64 = 9,
	DTYPE_F16 = 10,
	DTYPE_BF16 = 11,
	DTYPE_F32 = 12,
	DTYPE_F64 = 13,
	DTYPE_F8_E4M3 = 14,
	DTYPE_F8_E5M2 = 15,
	DTYPE_C64 = 16,
	DTYPE_C128 = 17,
	DTYPE_MAX = 17
};

struct tensor_type {
	uint32_t dtype; /* enum dtype */
	uint32_t n_dims;
	int64_t shape[TENSOR_MAX_DIMS];
	int64_t strides[TENSOR_MAX_DIMS]; /* elements, never negative */
};

/* Bytes of one element; 0 for a number that is no dtype. */
uint32_t dtype_size(uint32_t dtype);

/* "bf16", "f32", ...; "?" for a number that is no dtype. */
const char *dtype_name(uint32_t dtype);

/* Is it a floating-point dtype that can be cast and summed: f16 to f64? */
bool dtype_is_float(uint32_t dtype);

/* The dtype in which numbers of that dtype are summed; 0: they are not. */
uint32_t dtype_accumulator(uint32_t dtype);

/* The dtype of that name, or 0. */
uint32_t dtype_by_name(const char *name);

/* Fill the strides of a C-contiguous tensor of this shape. */
void tensor_type_contiguous(struct tensor_type *type);

bool tensor_type_is_contiguous(const struct tensor_type *type);

/*
 * Check a type from outside and give the bytes from its first element to the
 * end of its last one (0 if it has none). Refuses unknown dtypes, too many
 * dimensions, negative sizes and strides, and products that overflow 2^62.
 */
int tensor_type_check(const struct tensor_type *type, uint64_t *ret_span,
		      struct error *err);

/* Elements of a checked type. */
uint64_t tensor_type_numel(const struct tensor_type *type);
