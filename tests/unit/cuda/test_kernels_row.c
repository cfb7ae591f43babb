/* Tests which entries a table refuses. test_device_code.c and test_kernels.c
 * test the valid ones by their results. */
#include "cuda/kernels_row.h"
#include "proto/error.h"
#include "tests/lib/check.h"

#include <errno.h>
#include <string.h>

/* Expect `part` in the sentence. */
static void expect_refusal(enum kernels_kind kind,
			   const struct kernels_entry *entry, const char *part)
{
	struct error err = ERROR_NULL;
	struct kernels_row row;

	cr_assert(eq(int, kernels_row_make(kind, entry, &row, &err), -EINVAL));
	cr_assert(strstr(err.msg, part) != NULL, "%s", err.msg);
}

static const struct kernels_entry good = {
	.from_dtype = DTYPE_F32,
	.to_dtype = DTYPE_F32,
	.numel = 24,
	.padded_numel = 24,
	.n_ranks = 2,
	.stride = 48,
	.n_rows = 3,
	.part_numel = 4,
};

Test(kernels_row, invalid_casts_are_refused)
{
	struct kernels_entry entry = good;

	entry.to_dtype = DTYPE_I32;
	expect_refusal(KERNELS_COPY_IN, &entry, "f32 is not cast to i32");
	entry.from_dtype = DTYPE_F8_E4M3;
	entry.to_dtype = DTYPE_F32;
	expect_refusal(KERNELS_COPY_OUT, &entry, "f8_e4m3 is not cast to f32");
	entry.from_dtype = entry.to_dtype = DTYPE_C64;
	expect_refusal(KERNELS_GRAD_OUT, &entry, "c64 is not cast to c64");
	entry.from_dtype = DTYPE_I8;
	entry.to_dtype = DTYPE_I16;
	expect_refusal(KERNELS_CHUNK_CAT, &entry, "i8 is not cast to i16");
	entry.to_dtype = DTYPE_U64;
	expect_refusal(KERNELS_CHUNK_CAT, &entry, "i8 is not cast to u64");
	entry.to_dtype = 99;
	expect_refusal(KERNELS_COPY_IN, &entry, "i8 is not cast to ?");
}

Test(kernels_row, inconsistent_sizes_are_refused)
{
	struct kernels_entry entry = good;

	entry.numel = 25;
	expect_refusal(KERNELS_COPY_IN, &entry, "only 24 with padding");
	entry.numel = entry.padded_numel = UINT64_MAX / 2;
	expect_refusal(KERNELS_COPY_IN, &entry, "elements");
	entry = good;
	entry.part_numel = 5;
	expect_refusal(KERNELS_CHUNK_CAT, &entry, "2 chunks of 3 times 5");
	entry.part_numel = 3;
	expect_refusal(KERNELS_COPY_OUT, &entry, "2 chunks of 3 times 3");
	entry.part_numel = UINT64_MAX / 4;
	expect_refusal(KERNELS_COPY_OUT, &entry, "2 chunks of 3 times");
	entry = good;
	entry.numel = 23; /* only one row has padding */
	expect_refusal(KERNELS_COPY_OUT, &entry, "do not fit its 23");
}

/* Case 51 as the reference has it: f32 at byte 6. */
Test(kernels_row, unaligned_offsets_and_strides_are_refused)
{
	struct kernels_entry entry = good;

	entry.from = 6;
	expect_refusal(KERNELS_COPY_OUT, &entry, "offsets 6 and 0");
	entry.from = 0;
	entry.to = 2;
	expect_refusal(KERNELS_COPY_OUT, &entry, "offsets 0 and 2");
	entry.to = 0;
	entry.stride = 50;
	expect_refusal(KERNELS_COPY_OUT, &entry, "a stride of 50 bytes");
	entry.stride = 44;
	expect_refusal(KERNELS_CHUNK_CAT, &entry, "a stride of 44 bytes");
	entry.stride = UINT64_MAX / 4 * 4;
	expect_refusal(KERNELS_CHUNK_CAT, &entry, "a stride of");
}

/* Returns the number of tiles of n elements of that dtype. */
static uint64_t count_tiles(uint32_t dtype, uint64_t n)
{
	const struct kernels_entry entry = {
		.from_dtype = dtype,
		.to_dtype = dtype,
		.numel = n,
		.padded_numel = n,
	};
	struct kernels_row row;

	cr_assert(eq(int,
		     kernels_row_make(KERNELS_GRAD_OUT, &entry, &row, NULL),
		     0));
	return kernels_row_count_tiles(&row);
}

Test(kernels_row, a_tile_has_the_same_number_of_bytes_for_any_dtype)
{
	cr_assert(eq(u64, count_tiles(DTYPE_F32, 0), 0));
	cr_assert(eq(u64, count_tiles(DTYPE_F32, 1), 1));
	cr_assert(eq(u64, count_tiles(DTYPE_F32, KERNELS_TILE_SIZE / 4), 1));
	cr_assert(
		eq(u64, count_tiles(DTYPE_F32, KERNELS_TILE_SIZE / 4 + 1), 2));
	cr_assert(eq(u64, count_tiles(DTYPE_F64, KERNELS_TILE_SIZE), 8));
	cr_assert(eq(u64, count_tiles(DTYPE_BF16, KERNELS_TILE_SIZE), 2));
}
