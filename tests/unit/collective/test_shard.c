/* Tests how parameters are divided: the reference's numbers, and refusals. */
#include "collective/shard.h"
#include "proto/error.h"
#include "tests/lib/check.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static struct tensor_type make_type(uint32_t n_dims, const int64_t *shape)
{
	struct tensor_type type = {.dtype = DTYPE_F32, .n_dims = n_dims};

	memcpy(type.shape, shape, n_dims * sizeof(*shape));
	tensor_type_contiguous(&type);
	return type;
}

#define TYPE(n_dims, ...) make_type(n_dims, (const int64_t[]){__VA_ARGS__})

/* case 45 */
static const struct {
	int64_t size;
	uint32_t n_ranks;
	int64_t sizes[8];
	int64_t padded;
} chunks[] = {
	{3, 2, {2, 1}, 4},
	{5, 4, {2, 2, 1, 0}, 8},
	{9, 4, {3, 3, 3, 0}, 12},
	{10, 4, {3, 3, 3, 1}, 12},
	{2, 4, {1, 1, 0, 0}, 4},
	{7, 3, {3, 3, 1}, 9},
	{6, 4, {2, 2, 2, 0}, 8},
	{100, 8, {13, 13, 13, 13, 13, 13, 13, 9}, 104},
	{0, 3, {0, 0, 0}, 0},
	{1, 1, {1}, 1},
};

Test(shard, chunks_equal_those_of_torch_chunk)
{
	for (size_t i = 0; i < sizeof(chunks) / sizeof(*chunks); i++) {
		struct tensor_type type = TYPE(2, chunks[i].size, 5);
		struct shard shard;

		cr_assert(zero(int, shard_make(&type, 0, chunks[i].n_ranks,
					       &shard, NULL)));
		for (uint32_t j = 0; j < chunks[i].n_ranks; j++)
			cr_expect(eq(i64, shard_size_of(&shard, j),
				     chunks[i].sizes[j]),
				  "row %zu rank %u", i, j);
		cr_expect(
			eq(i64, shard.chunk * shard.n_ranks, chunks[i].padded));
		cr_expect(eq(u64, shard.padded_numel,
			     5 * (uint64_t)chunks[i].padded));
	}
}

/* The rows come from torch: python/tests/test_fully_shard.py. */
Test(shard, sizes_equal_those_of_fully_shard)
{
	FILE *file = fopen(
		FSDP_SOURCE_DIR "/tests/unit/collective/shard.golden", "r");
	int64_t size, padded, mine;
	uint32_t n_ranks;
	int n = 0;

	cr_assert(ne(ptr, file, NULL));
	while (fscanf(file, "%" SCNd64 " %u %" SCNd64, &size, &n_ranks,
		      &padded) == 3) {
		struct tensor_type type = TYPE(2, size, 3);
		struct shard shard;

		n++;
		cr_assert(
			zero(int, shard_make(&type, 0, n_ranks, &shard, NULL)));
		cr_expect(eq(u64, shard.padded_numel, 3 * (uint64_t)padded));
		for (uint32_t rank = 0; rank < n_ranks; rank++) {
			cr_assert(eq(int, fscanf(file, "%" SCNd64, &mine), 1));
			cr_expect(eq(i64, shard_size_of(&shard, rank), mine),
				  "row %d rank %u", n, rank);
		}
	}
	cr_assert(feof(file) && n > 60, "after row %d", n);
	fclose(file);
}

/* case 46 */
Test(shard, padding_of_a_real_model_is_counted)
{
	const struct {
		struct tensor_type type;
		uint64_t padded;
	} rows[] = {
		{TYPE(2, 17, 257), 32896}, {TYPE(1, 17), 128},
		{TYPE(2, 64, 312), 39936}, {TYPE(1, 64), 128},
		{TYPE(2, 64, 64), 8192},   {TYPE(2, 512, 64), 32768},
		{TYPE(1, 256), 256},       {TYPE(2, 64, 297), 38016},
	};
	uint64_t padded = 0, raw = 0, of_a_rank = 0;

	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		struct shard shard;

		cr_assert(zero(
			int, shard_make(&rows[i].type, 0, 128, &shard, NULL)));
		cr_expect(eq(u64, shard.padded_numel, rows[i].padded));
		padded += shard.padded_numel;
		of_a_rank += shard.chunk_numel;
		raw += shard.numel;
	}
	cr_assert(eq(u64, padded, 152320));
	cr_assert(eq(u64, of_a_rank, 1190));
	cr_assert(eq(u64, raw, 80546));
}

Test(shard, sharding_a_later_dimension_takes_a_part_of_each_row)
{
	struct tensor_type type = TYPE(4, 3, 5, 8, 7);
	struct shard shard;

	cr_assert(zero(int, shard_make(&type, -2, 4, &shard, NULL)));
	cr_assert(eq(u32, shard.dim, 2));
	cr_assert(eq(i64, shard.chunk, 2));
	cr_assert(eq(u64, shard.n_rows, 15));
	cr_assert(eq(u64, shard.row_numel, 7));
	cr_assert(eq(u64, shard.chunk_numel, 210));
	cr_assert(eq(u64, shard.padded_numel, 840));
	cr_assert(eq(i64, shard_size_of(&shard, 3), 2));
}

Test(shard, a_rank_may_have_an_empty_shard)
{
	struct tensor_type type = TYPE(2, 9, 6);
	struct shard shard;

	cr_assert(zero(int, shard_make(&type, 0, 4, &shard, NULL)));
	cr_assert(eq(i64, shard_size_of(&shard, 3), 0));
}

Test(shard, a_scalar_is_sharded_as_one_element)
{
	struct tensor_type type = {.dtype = DTYPE_F32};
	struct shard shard;

	cr_assert(zero(int, shard_make(&type, -1, 3, &shard, NULL)));
	cr_assert(eq(u64, shard.padded_numel, 3));
	cr_assert(eq(i64, shard_size_of(&shard, 0), 1));
	cr_assert(eq(i64, shard_size_of(&shard, 1), 0));
}

static void check_refused(struct tensor_type type, int32_t dim,
			  uint32_t n_ranks, int r, const char *word)
{
	struct shard shard = {.n_ranks = 77};
	struct error err = ERROR_NULL;

	cr_expect(eq(int, shard_make(&type, dim, n_ranks, &shard, &err), r));
	cr_expect(strstr(err.msg, word) != NULL, "\"%s\" has no \"%s\"",
		  err.msg, word);
	cr_expect(eq(u32, shard.n_ranks, 77), "written on failure");
}

Test(shard, a_tensor_that_cannot_be_sharded_is_refused_with_a_remedy)
{
	struct tensor_type columns = TYPE(2, 4, 6);

	columns.strides[0] = 1;
	columns.strides[1] = 4;
	check_refused(columns, 0, 2, -EINVAL, "contiguous copy");
	check_refused(TYPE(2, 4, 6), 2, 2, -EINVAL, "no dimension 2");
	check_refused(TYPE(2, 4, 6), -3, 2, -EINVAL, "no dimension -3");
	check_refused(TYPE(2, 4, 6), INT32_MIN, 2, -EINVAL, "no dimension");
	check_refused(TYPE(4, 3, 7, 8, 4), 1, 4, -EINVAL, "cut along 0, 2, 3");
	check_refused(TYPE(2, 4, 6), 0, 0, -EINVAL, "0 ranks");
	check_refused(TYPE(2, 4, -6), 0, 2, -EINVAL, "-6");
	/* 2^62 bytes are valid. Padding them to three halves is not. */
	check_refused(TYPE(2, 2, INT64_C(1) << 59), 0, 3, -EOVERFLOW, "2^62");
}
