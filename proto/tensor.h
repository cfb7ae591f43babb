/*
 * The type of a tensor: dtype, shape and strides. All three come from outside
 * and must be checked.
 *
 * Shapes and strides count elements. A valid type has explicit strides;
 * tensor_type_contiguous() sets them in the usual case. A 0-d tensor has one
 * element, and a tensor with a 0 in its shape has none. Both are valid.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct error;

#define TENSOR_MAX_DIMS 8

/* The numbers are used on the wire and in the catalog, so they never change. */
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
	int64_t strides[TENSOR_MAX_DIMS]; /* in elements, never negative */
};

/* Returns the bytes of one element, or 0 if the number is not a dtype. */
uint32_t dtype_size(uint32_t dtype);

/* Returns "bf16", "f32", ..., or "?" if the number is not a dtype. */
const char *dtype_name(uint32_t dtype);

/* Returns whether it is a floating-point dtype that can be cast and summed: f16
 * to f64. */
bool dtype_is_float(uint32_t dtype);

/* Returns the dtype in which numbers of that dtype are summed, or 0 if they
 * cannot be summed. */
uint32_t dtype_accumulator(uint32_t dtype);

/* Returns the dtype of that name, or 0. */
uint32_t dtype_by_name(const char *name);

/* Sets the strides of a C-contiguous tensor of this shape. */
void tensor_type_contiguous(struct tensor_type *type);

bool tensor_type_is_contiguous(const struct tensor_type *type);

/*
 * Checks a type, and computes the bytes from its first element to the end of
 * its last one (0 if it has no elements). Refuses unknown dtypes, too many
 * dimensions, negative sizes and strides, and products above 2^62.
 */
int tensor_type_check(const struct tensor_type *type, uint64_t *ret_span,
		      struct error *err);

/* Returns the number of elements of a valid type. */
uint64_t tensor_type_numel(const struct tensor_type *type);
