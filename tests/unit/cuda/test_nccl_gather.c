/*
 * Tests the results of gathers, and their order.
 */
#include "tests/unit/cuda/nccl_task.h"

TestSuite(nccl_gather, .init = task_open, .fini = mesh_close, .timeout = 300);

/* Check part `p` in rank `rank`. It has n_shards times numel elements. */
static void expect_gathered(uint32_t rank, uint32_t p, uint64_t at)
{
	const uint8_t *found = task->found[rank] + at;
	uint64_t numel = task->numel[p];
	uint32_t first = rank / mesh->n_shards * mesh->n_shards;

	for (uint64_t i = 0; i < numel * mesh->n_shards; i++) {
		uint32_t from = first + (uint32_t)(i / numel);
		uint8_t expected[16] = {0};

		scalar_store((enum fsdp_dtype)task->dtype, expected, 0,
			     element(from, p, i % numel));
		cr_assert(eq(u64, load(found, i), load(expected, 0)),
			  "rank %u, part %u, element %lu", rank, p, i);
	}
}

static void expect_gather(uint32_t n_shards, uint32_t n_replicas)
{
	begin(n_shards, n_replicas);
	cr_assert(zero(int, ranks_run(&ranks, fill_chunks)));
	cr_assert(zero(int, ranks_run(&ranks, gather)));
	for (uint32_t rank = 0; rank < ranks.n; rank++) {
		uint64_t at = 0;

		for (uint32_t p = 0; p < task->n_parts; p++) {
			expect_gathered(rank, p, at);
			at += task->numel[p] * element_size() * n_shards + 64;
		}
	}
	end();
}

Test(nccl_gather, a_flat_bucket_is_gathered)
{
	task->numel[0] = 1024;
	expect_gather(4, 1);
}

Test(nccl_gather, a_shard_may_be_gathered_in_place)
{
	task->is_in_place = true;
	expect_gather(3, 1);
}

Test(nccl_gather, parameters_are_gathered_as_one_group)
{
	task->n_parts = 3;
	task->numel[1] = 5000;
	task->numel[2] = 1;
	expect_gather(2, 1);
	task->is_in_place = true;
	expect_gather(2, 1);
}

Test(nccl_gather, each_replica_gathers_its_own_shards)
{
	expect_gather(2, 2);
}

/* Begin a reduction that waits, and then a gather on the same communicator. The
 * gather must not wait for the reduction. */
static int gather_past_a_reduction(void)
{
	CUstream held = rank_make_stream(), own = self.stream;
	int r;

	rank_hold(held);
	self.stream = held;
	r = begin_reduce();
	self.stream = own;
	if (r == 0)
		r = begin_gather();
	if (r == 0)
		r = rank_wait_stream();
	must(!rank_is_done(held));
	rank_let_go();
	self.stream = held;
	return r < 0 ? r : rank_wait_stream();
}

static void expect_gather_past_a_reduction(uint32_t n_replicas)
{
	begin(2, n_replicas);
	/* The first collective waits for the other ranks to connect, so do it
	 * before. */
	cr_assert(zero(int, ranks_run(&ranks, begin_reduce)));
	cr_assert(zero(int, ranks_run(&ranks, gather)));
	cr_expect(zero(int, ranks_run(&ranks, gather_past_a_reduction)));
	end();
}

Test(nccl_gather, a_gather_overtakes_a_reduction_that_waits_for_its_gradients)
{
	expect_gather_past_a_reduction(1);
	expect_gather_past_a_reduction(2);
}

Test(nccl_gather, empty_parts_are_allowed)
{
	task->n_parts = 2;
	task->numel[0] = 0;
	task->numel[1] = 16;
	expect_gather(2, 1);
}

Test(nccl_gather, one_rank_gathers_from_itself)
{
	expect_gather(1, 1);
}

Test(nccl_gather, elements_of_any_dtype_are_gathered)
{
	static const uint32_t dtypes[] = {DTYPE_BOOL, DTYPE_I16, DTYPE_F8_E4M3,
					  DTYPE_BF16, DTYPE_C128};

	for (size_t i = 0; i < sizeof(dtypes) / sizeof(*dtypes); i++) {
		task->dtype = dtypes[i];
		expect_gather(2, 1);
	}
}

/* --- order --------------------------------------------------------------- */

/* Run many, each with the result of the previous one as its input: all ranks'
 * elements are added up again and again. */
#define N_ROUNDS 12

static int reduce_and_gather_in_turn(void)
{
	for (int i = 0; i < N_ROUNDS; i++) {
		int r = begin_reduce();

		if (r == 0)
			r = begin_gather();
		if (r < 0)
			return r;
	}
	return find(wholes);
}

static int fill_wholes_with_ones(void)
{
	float ones[64];

	for (int i = 0; i < 64; i++)
		ones[i] = 1;
	rank_put(wholes, ones, sizeof(ones));
	return 0;
}

Test(nccl_gather, each_collective_sees_the_results_of_the_previous_one)
{
	setenv("FAKENCCL_DELAY_US", "300", 1);
	task->is_in_place = true;
	begin(2, 1);
	cr_assert(zero(int, ranks_run(&ranks, fill_wholes_with_ones)));
	cr_assert(zero(int, ranks_run(&ranks, reduce_and_gather_in_turn)));
	for (uint32_t rank = 0; rank < 2; rank++)
		for (int i = 0; i < 32; i++)
			cr_assert(eq(u64, load(task->found[rank], (uint64_t)i),
				     scalar_encode(FSDP_F32, 1 << N_ROUNDS)));
	end();
}

static int gather_less_than_the_others(void)
{
	int r;

	if (rank_self() == 1)
		parts[0].numel /= 2;
	r = begin_gather();
	return r < 0 ? r : rank_wait_stream();
}

Test(nccl_gather, ranks_that_make_different_calls_get_an_error)
{
	need_fakes();
	begin(2, 1);
	ranks_begin(&ranks, gather_less_than_the_others);
	ranks_end(&ranks);
	cr_expect(eq(int, ranks.notes[0].code, -EINVAL));
	cr_expect(eq(int, ranks.notes[1].code, -EINVAL));
	expect_said(0, "rank 1 AllGather of 32");
	expect_said(1, "rank 0 AllGather of 64");
}

/* --- with kernels -------------------------------------------------------- */

static struct kernels_table *copy_in, *copy_out; /* in a rank */

static int make_tables(void)
{
	chunks = rank_allocate(MAX_BYTES);
	wholes = rank_allocate(MAX_BYTES);
	outputs = rank_allocate(MAX_BYTES);
	copy_in = make_table(KERNELS_COPY_IN, DTYPE_F32, DTYPE_BF16);
	copy_out = make_table(KERNELS_COPY_OUT, DTYPE_BF16, DTYPE_F32);
	return 0;
}

/* Gather chunks of f32 as bf16, in place on the wire, and copy them out as
 * f32. */
static int gather_with_casts(void)
{
	struct error err = ERROR_NULL;
	CUdeviceptr row = wholes + shard_self() * CHUNK * 2;
	const struct nccl_part part = {row, wholes, CHUNK};
	struct kernels_launch in = launch_of(copy_in, chunks, row);
	struct kernels_launch out = launch_of(copy_out, wholes, outputs);
	const struct nccl_gather gather = {
		.copy_in = &in,
		.parts = &part,
		.n_parts = 1,
		.dtype = DTYPE_BF16,
		.copy_out = &out,
	};
	int r;

	fill(chunks, 0, 0, CHUNK);
	r = nccl_gather(self.comm, &gather, self.stream, &err);
	return r < 0 ? rank_say(r, err.msg) : find(outputs);
}

Test(nccl_gather, a_gather_casts_before_and_after_it)
{
	mesh_join(2, 1);
	cr_assert(zero(int, ranks_run(&ranks, make_tables)));
	cr_assert(zero(int, ranks_run(&ranks, gather_with_casts)));
	for (uint32_t rank = 0; rank < 2; rank++)
		for (uint64_t i = 0; i < 2 * CHUNK; i++) {
			double x = scalar_decode(
				FSDP_F32,
				element(i < CHUNK ? 0 : 1, 0, i % CHUNK));

			cr_assert(
				eq(u64, load(task->found[rank], i),
				   scalar_encode(FSDP_F32,
						 scalar_round(FSDP_BF16, x))));
		}
	end();
}
