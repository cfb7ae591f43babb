/*
 * Compares the sums of reductions with sums made one element at a time
 * (tests/lib/scalar.h), and tests the effects of faults.
 */
#include "tests/unit/cuda/nccl_task.h"
#include <math.h>

TestSuite(nccl_reduce, .init = task_open, .fini = mesh_close, .timeout = 300);

/* --- sums ---------------------------------------------------------------- */

/* Add as the fake does: in the order of the ranks, with its accumulator. */
static double sum_floats(const double *values, uint32_t n, double factor,
			 enum nccl_op op)
{
	enum fsdp_dtype dtype = (enum fsdp_dtype)task->dtype;
	enum fsdp_dtype accumulator = scalar_accumulator(dtype);
	double sum = 0;

	for (uint32_t i = 0; i < n; i++) {
		double x = scalar_multiply(accumulator, values[i], factor);

		sum = i == 0 ? x : scalar_add(accumulator, sum, x);
	}
	if (op == NCCL_OP_AVG)
		sum = scalar_divide(accumulator, sum, n);
	return scalar_round(dtype, sum);
}

/* Returns element i of part p, reduced, as a float. */
static double reduced_float(uint32_t p, uint64_t i)
{
	enum fsdp_dtype dtype = (enum fsdp_dtype)task->dtype;
	double totals[RANKS_MAX], values[RANKS_MAX];
	double factor = task->scatter_op == NCCL_OP_PREMUL_SUM
				? scalar_round(dtype, task->premul)
				: 1;

	for (uint32_t g = 0; g < mesh->n_replicas; g++) {
		for (uint32_t s = 0; s < mesh->n_shards; s++)
			values[s] = scalar_decode(
				dtype, element(g * mesh->n_shards + s, p, i));
		totals[g] = sum_floats(values, mesh->n_shards, factor,
				       task->scatter_op);
	}
	if (mesh->n_replicas == 1)
		return totals[0];
	return sum_floats(totals, mesh->n_replicas, 1, task->reduce_op);
}

static uint64_t reduced_integer(uint32_t p, uint64_t i)
{
	uint64_t sum = 0;

	for (uint32_t rank = 0; rank < ranks.n; rank++)
		sum += element(rank, p, i);
	return sum;
}

/* The real NCCL rounds with every addition, in an order of its own. */
static bool is_near(double found, double expected)
{
	double unit = scalar_epsilon((enum fsdp_dtype)task->dtype);

	if (getenv("FSDP_LIBNCCL"))
		return false;
	return fabs(found - expected) <= 10 * ranks.n * ranks.n * unit;
}

static void expect_element(const uint8_t *found, uint32_t p, uint64_t i,
			   uint64_t at)
{
	enum fsdp_dtype dtype = (enum fsdp_dtype)task->dtype;
	uint8_t bytes[16] = {0};
	double expected;

	if (!scalar_is_float(dtype)) {
		scalar_store(dtype, bytes, 0, reduced_integer(p, i));
		cr_assert(eq(u64, load(found, at), load(bytes, 0)));
		return;
	}
	expected = reduced_float(p, i);
	if (is_near(scalar_decode(dtype, load(found, at)), expected))
		return;
	cr_assert(scalar_is_same(dtype, load(found, at),
				 scalar_encode(dtype, expected)),
		  "%s: element %lu of part %u is %g and not %g",
		  dtype_name(task->dtype), i, p,
		  scalar_decode(dtype, load(found, at)), expected);
}

static void expect_reduced(uint32_t rank)
{
	uint32_t shard = rank % mesh->n_shards;
	uint64_t at = 0;

	for (uint32_t p = 0; p < task->n_parts; p++) {
		uint64_t numel = task->numel[p];
		const uint8_t *found = task->found[rank] + at;

		if (task->is_in_place)
			found += shard * numel * element_size();
		for (uint64_t i = 0; i < numel; i++)
			expect_element(found, p, shard * numel + i, i);
		at += numel * element_size() * mesh->n_shards + 64;
	}
}

static void expect_reduce(uint32_t n_shards, uint32_t n_replicas)
{
	begin(n_shards, n_replicas);
	cr_assert(zero(int, ranks_run(&ranks, fill_wholes)));
	cr_assert(zero(int, ranks_run(&ranks, reduce)));
	for (uint32_t rank = 0; rank < ranks.n; rank++)
		expect_reduced(rank);
	end();
}

Test(nccl_reduce, every_dtype_that_nccl_supports_is_summed)
{
	static const uint32_t dtypes[] = {
		DTYPE_U8,  DTYPE_I8,  DTYPE_U32,  DTYPE_I32, DTYPE_U64,
		DTYPE_I64, DTYPE_F16, DTYPE_BF16, DTYPE_F32, DTYPE_F64,
	};

	task->numel[0] = 300;
	for (size_t i = 0; i < sizeof(dtypes) / sizeof(*dtypes); i++) {
		task->dtype = dtypes[i];
		expect_reduce(3, 1);
	}
}

Test(nccl_reduce, a_dtype_that_cannot_be_summed_is_refused)
{
	task->dtype = DTYPE_F8_E4M3;
	begin(2, 1);
	cr_expect(eq(int, ranks_run(&ranks, begin_reduce), -EINVAL));
	expect_said(0, "cannot reduce f8_e4m3");
	end();
}

Test(nccl_reduce, gradients_are_reduced_in_place)
{
	task->is_in_place = true;
	task->numel[0] = 5000;
	expect_reduce(3, 1);
}

Test(nccl_reduce, gradients_are_reduced_as_one_group)
{
	task->n_parts = 3;
	task->numel[1] = 77;
	task->numel[2] = 4096;
	expect_reduce(2, 1);
}

Test(nccl_reduce, gradients_of_replicas_are_reduced)
{
	task->n_parts = 2;
	task->numel[1] = 33;
	expect_reduce(2, 2);
	task->dtype = DTYPE_BF16;
	expect_reduce(2, 3);
}

Test(nccl_reduce, replicas_of_whole_parameters_are_reduced)
{
	task->scatter_op = task->reduce_op = NCCL_OP_AVG;
	expect_reduce(1, 2);
}

Test(nccl_reduce, the_mean_divides_by_the_number_of_ranks)
{
	task->scatter_op = task->reduce_op = NCCL_OP_AVG;
	expect_reduce(3, 1);
	expect_reduce(3, 2);
	task->dtype = DTYPE_BF16;
	expect_reduce(3, 1);
}

Test(nccl_reduce, the_mean_of_one_rank_is_its_input)
{
	task->scatter_op = NCCL_OP_AVG;
	expect_reduce(1, 1);
}

Test(nccl_reduce, inputs_are_multiplied_in_the_sum)
{
	task->scatter_op = NCCL_OP_PREMUL_SUM;
	task->premul = 1.0 / 3; /* which bf16 rounds up */
	expect_reduce(3, 1);
	expect_reduce(1, 1);
	task->dtype = DTYPE_BF16;
	expect_reduce(3, 1);
}

/* The fake has room for sixteen operations of a communicator. */
static int reduce_many_times(void)
{
	for (int i = 0; i < 40; i++) {
		int r = begin_reduce();

		if (r < 0)
			return r;
	}
	return rank_wait_stream();
}

Test(nccl_reduce, operations_are_freed_after_each_reduction)
{
	task->scatter_op = NCCL_OP_PREMUL_SUM;
	task->premul = 0.5;
	begin(2, 1);
	cr_assert(zero(int, ranks_run(&ranks, fill_wholes)));
	cr_expect(zero(int, ranks_run(&ranks, reduce_many_times)));
	end();
}

Test(nccl_reduce, a_dtype_that_cannot_be_multiplied_is_refused)
{
	task->scatter_op = NCCL_OP_PREMUL_SUM;
	task->dtype = DTYPE_F16;
	begin(2, 1);
	cr_expect(eq(int, ranks_run(&ranks, begin_reduce), -EINVAL));
	expect_said(0, "NCCL cannot multiply f16 in a sum");
	end();
}

static int reduce_over_no_replicas(void)
{
	struct error err = ERROR_NULL;
	const struct nccl_sum sum = {chunks, 16};
	const struct nccl_reduce reduce = {
		.dtype = DTYPE_F32, .sums = &sum, .n_sums = 1};

	return rank_say(nccl_reduce(self.comm, &reduce, self.stream, &err),
			err.msg);
}

static int multiply_over_replicas(void)
{
	struct error err = ERROR_NULL;
	const struct nccl_sum sum = {chunks, 16};
	const struct nccl_reduce reduce = {.dtype = DTYPE_F32,
					   .sums = &sum,
					   .n_sums = 1,
					   .reduce_op = NCCL_OP_PREMUL_SUM};

	return rank_say(nccl_reduce(self.comm, &reduce, self.stream, &err),
			err.msg);
}

Test(nccl_reduce, unsupported_reductions_over_replicas_are_refused)
{
	begin(2, 1);
	cr_expect(eq(int, ranks_run(&ranks, reduce_over_no_replicas), -EINVAL));
	expect_said(0, "has no replicas");
	end();
	begin(1, 2);
	cr_expect(eq(int, ranks_run(&ranks, multiply_over_replicas), -EINVAL));
	expect_said(0, "cannot multiply sums");
	end();
}

/* --- faults -------------------------------------------------------------- */

/* A rank that fails leaves at once, so that the others are told. */
static int gather_and_reduce(void)
{
	int r = begin_gather();

	if (r == 0)
		r = reduce();
	if (r < 0)
		(void)nccl_comm_abort(&self.comm, NULL);
	return r;
}

static void expect_fault(const char *fault, const char *part)
{
	mesh_start(2, 1);
	set_fault(1, fault);
	cr_assert(zero(int, ranks_run(&ranks, rank_join)));
	cr_assert(zero(int, ranks_run(&ranks, lay_out)));
	ranks_begin(&ranks, gather_and_reduce);
	ranks_end(&ranks);
	cr_expect(eq(int, ranks.notes[1].code, -EIO), "%s", fault);
	expect_said(1, part);
	cr_expect(eq(int, ranks.notes[0].code, -ECONNABORTED), "%s", fault);
	cr_assert(zero(int, rank_run(&ranks, 0, rank_make_id)));
	cr_assert(zero(int, ranks_run(&ranks, rank_join)));
	cr_expect(zero(int, ranks_run(&ranks, gather_and_reduce)), "%s", fault);
	ranks_stop(&ranks);
}

/* Let rank 1 fail in this way. It must report the failure, the others must be
 * told, and all must be able to meet again. */
Test(nccl_reduce, a_failure_is_reported_and_ends_the_call_of_all_ranks)
{
	need_fakes();
	task->scatter_op = NCCL_OP_PREMUL_SUM;
	task->premul = 0.5;
	task->n_parts = 2;
	task->numel[1] = 8;
	expect_fault("GroupStart:1:3", "rank 1: gather");
	expect_fault("AllGather:1:1", "rank 1: gather");
	expect_fault("AllGather:2:3", "rank 1: gather");
	expect_fault("GroupEnd:1:3", "rank 1: gather");
	expect_fault("RedOpCreatePreMulSum:1:3", "make an operation");
	expect_fault("ReduceScatter:2:3", "rank 1: reduce-scatter");
	expect_fault("Run:1:3", "internal error");
	expect_fault("Run:4:2", "unhandled system error");
}

/* --- with kernels -------------------------------------------------------- */

/* These belong to each rank. */
static CUdeviceptr kept;
static struct kernels_table *chunk_cat, *add, *grad_out;

static int make_tables(void)
{
	float zeros[CHUNK] = {0};

	chunks = rank_allocate(MAX_BYTES);
	wholes = rank_allocate(MAX_BYTES);
	outputs = rank_allocate(MAX_BYTES);
	kept = rank_allocate(MAX_BYTES);
	rank_put(kept, zeros, sizeof(zeros));
	chunk_cat = make_table(KERNELS_CHUNK_CAT, DTYPE_BF16, DTYPE_F32);
	add = make_table(KERNELS_GRAD_OUT, DTYPE_F32, DTYPE_F32);
	grad_out = make_table(KERNELS_GRAD_OUT, DTYPE_F32, DTYPE_BF16);
	return 0;
}

/* Whole gradients of bf16 are halved, added up in f32 and kept. The second time
 * they are also summed over the replicas, and copied out as bf16 by a third. */
static int reduce_with_casts(bool is_last)
{
	struct error err = ERROR_NULL;
	CUdeviceptr row = wholes + shard_self() * CHUNK * 4;
	const struct nccl_part part = {row, wholes, CHUNK};
	const struct nccl_sum sum = {kept, CHUNK};
	struct kernels_launch cat = launch_of(chunk_cat, outputs, wholes);
	struct kernels_launch keep = launch_of(add, row, kept);
	struct kernels_launch out = launch_of(grad_out, kept, chunks);
	const struct nccl_reduce reduce = {
		.dtype = DTYPE_F32,
		.chunk_cat = &cat,
		.parts = &part,
		.n_parts = 1,
		.add = &keep,
		.sums = &sum,
		.n_sums = is_last ? 1 : 0,
		.grad_out = is_last ? &out : NULL,
	};

	cat.factor = 0.5;
	keep.is_added = true;
	out.factor = 3;
	return rank_say(nccl_reduce(self.comm, &reduce, self.stream, &err),
			err.msg);
}

static int reduce_twice(void)
{
	int r;

	fill(outputs, 0, 0, 2 * CHUNK);
	r = reduce_with_casts(false);
	if (r == 0)
		r = reduce_with_casts(true);
	return r < 0 ? r : find(chunks);
}

/* The numbers were computed by hand; every sum but the last is exact in f32. */
static uint64_t reduced_twice(uint64_t i)
{
	double total = 0;

	for (uint32_t rank = 0; rank < 4; rank++)
		total += scalar_decode(FSDP_BF16, element(rank, 0, i));
	return scalar_encode(FSDP_BF16,
			     scalar_divide(FSDP_F32, total / 2 * 2, 3));
}

Test(nccl_reduce, a_reduction_casts_divides_and_keeps_sums)
{
	task->dtype = DTYPE_BF16;
	mesh_join(2, 2);
	cr_assert(zero(int, ranks_run(&ranks, make_tables)));
	cr_assert(zero(int, ranks_run(&ranks, reduce_twice)));
	for (uint32_t rank = 0; rank < 4; rank++)
		for (uint64_t i = 0; i < CHUNK; i++)
			cr_assert(eq(u64, load(task->found[rank], i),
				     reduced_twice(rank % 2 * CHUNK + i)),
				  "rank %u, element %lu", rank, i);
	end();
}
