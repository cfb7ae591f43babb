/* Tests shapes, strides, and the checks of hostile values. */
#include "proto/error.h"
#include "proto/tensor.h"
#include "tests/lib/check.h"

#include <errno.h>
#include <string.h>

#define BIG (INT64_C(1) << 61)

Test(tensor, every_dtype_has_a_size_and_a_unique_name)
{
	for (uint32_t i = 1; i <= DTYPE_MAX; i++) {
		cr_assert(gt(u32, dtype_size(i), 0));
		cr_assert(eq(u32, dtype_by_name(dtype_name(i)), i));
	}
	cr_assert(eq(u32, dtype_size(DTYPE_BF16), 2));
	cr_assert(eq(u32, dtype_size(DTYPE_C128), 16));
	cr_assert(eq(str, (char *)dtype_name(DTYPE_F8_E4M3), "f8_e4m3"));
}

Test(tensor, invalid_numbers_and_names_of_dtypes_are_recognised)
{
	cr_assert(zero(u32, dtype_size(0)));
	cr_assert(zero(u32, dtype_size(DTYPE_MAX + 1)));
	cr_assert(zero(u32, dtype_size(UINT32_MAX)));
	cr_assert(eq(str, (char *)dtype_name(0), "?"));
	cr_assert(zero(u32, dtype_by_name("?")));
	cr_assert(zero(u32, dtype_by_name("")));
}

struct row {
	struct tensor_type type;
	bool is_strided; /* otherwise the strides are filled in */
	int r;
	uint64_t span;
	bool is_contiguous;
};

static const struct row rows[] = {
	{{DTYPE_F32, 0, {0}, {0}}, false, 0, 4, true},
	{{DTYPE_F32, 2, {3, 4}, {0}}, false, 0, 48, true},
	{{DTYPE_F32, 2, {3, 0}, {0}}, false, 0, 0, true},
	{{DTYPE_F32, 2, {0, BIG}, {0}}, false, -EOVERFLOW, 0, 0},
	{{DTYPE_U8, 1, {BIG * 2 - 1}, {0}}, false, 0, BIG * 2 - 1, true},
	{{DTYPE_U8, 2, {BIG, 4}, {0}}, false, -EOVERFLOW, 0, 0},
	{{DTYPE_C128, 1, {BIG}, {0}}, false, -EOVERFLOW, 0, 0},
	{{DTYPE_U8, 3, {INT64_MAX, INT64_MAX, INT64_MAX}, {0}},
	 false,
	 -EOVERFLOW,
	 0,
	 0},
	/* columns of a matrix; overlapping windows; a broadcast */
	{{DTYPE_U16, 2, {3, 4}, {1, 3}}, true, 0, 24, false},
	{{DTYPE_U16, 2, {3, 4}, {2, 1}}, true, 0, 16, false},
	{{DTYPE_U16, 2, {3, 4}, {0, 1}}, true, 0, 8, false},
	/* strides of single elements are not used */
	{{DTYPE_U16, 2, {1, 4}, {99, 1}}, true, 0, 8, true},
	{{DTYPE_U8, 1, {2}, {INT64_MAX}}, true, -EOVERFLOW, 0, 0},
	{{DTYPE_U8, 1, {1}, {INT64_MAX}}, true, -EOVERFLOW, 0, 0},
	{{DTYPE_U8, 2, {2, 2}, {BIG, BIG}}, true, -EOVERFLOW, 0, 0},
	{{DTYPE_U8, 1, {-1}, {1}}, true, -EINVAL, 0, 0},
	{{DTYPE_U8, 1, {2}, {-1}}, true, -EINVAL, 0, 0},
	{{0, 1, {2}, {1}}, true, -EINVAL, 0, 0},
	{{DTYPE_MAX + 1, 1, {2}, {1}}, true, -EINVAL, 0, 0},
	{{DTYPE_U8, TENSOR_MAX_DIMS + 1, {0}, {0}}, true, -EINVAL, 0, 0},
	{{DTYPE_U8, UINT32_MAX, {0}, {0}}, false, -EINVAL, 0, 0},
};

Test(tensor, types_are_validated_and_their_sizes_computed)
{
	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		struct tensor_type type = rows[i].type;
		struct error err = ERROR_NULL;
		uint64_t span = 77;

		if (!rows[i].is_strided)
			tensor_type_contiguous(&type);
		cr_expect(eq(int, tensor_type_check(&type, &span, &err),
			     rows[i].r),
			  "row %zu: %s", i, err.msg);
		cr_expect(eq(u64, span, rows[i].r ? 77 : rows[i].span),
			  "row %zu", i);
		if (rows[i].r == 0)
			cr_expect(eq(int, tensor_type_is_contiguous(&type),
				     rows[i].is_contiguous),
				  "row %zu", i);
		else
			cr_expect(ne(str, err.msg, ""), "row %zu", i);
	}
}

Test(tensor, strides_of_a_contiguous_tensor_decrease_to_one)
{
	struct tensor_type type = {DTYPE_F32, 3, {2, 3, 4}, {0}};

	tensor_type_contiguous(&type);
	cr_assert(eq(i64, type.strides[0], 12));
	cr_assert(eq(i64, type.strides[1], 4));
	cr_assert(eq(i64, type.strides[2], 1));
	cr_assert(eq(u64, tensor_type_numel(&type), 24));
}

Test(tensor, a_scalar_has_one_element_and_an_empty_tensor_has_zero)
{
	struct tensor_type scalar = {.dtype = DTYPE_F32};
	struct tensor_type empty = {DTYPE_F32, 2, {5, 0}, {0}};

	cr_assert(eq(u64, tensor_type_numel(&scalar), 1));
	cr_assert(eq(u64, tensor_type_numel(&empty), 0));
}

/* The product of the sizes wraps around to 0 in 64 bits, which is the
 * stride. */
Test(tensor, products_that_overflow_are_not_contiguous)
{
	struct tensor_type type = {DTYPE_U8, 3, {2, BIG * 2, 4}, {0, 4, 1}};
	uint64_t span;

	cr_assert(zero(int, tensor_type_is_contiguous(&type)));
	cr_assert(eq(int, tensor_type_check(&type, &span, NULL), -EOVERFLOW));
}
