/*
 * Tests offload, with shards and gradients in host memory and whole parameters
 * on devices. The suites of gathers, reductions and steps run once more with
 * it, and test that a training has the same result.
 */
#include "tests/lib/chaos.h"
#include "tests/lib/check.h"
#include "tests/lib/gpu.h"
#include "tests/lib/leaks.h"
#include "tests/lib/trainer.h"
#include <errno.h>
#include <string.h>

static const struct fsdp_param_spec PARAMS[] = {
	{.name = "weight", .spec = {FSDP_F32, 2, {5, 4}}},
	{.name = "frozen", .spec = {FSDP_F32, 1, {7}}, .is_frozen = true},
};
/* This parameter needs more memory than the first group has on the device. */
static const struct fsdp_param_spec LARGE[] = {
	{.name = "weight", .spec = {FSDP_F32, 2, {300, 40}}},
};

static const struct layer LAYERS[] = {
	{.name = "host", .params = PARAMS, .n = 2, .policy = {.offload = true}},
	{.name = "device", .params = PARAMS, .n = 2},
	{.name = "large", .params = LARGE, .n = 1, .policy = {.offload = true}},
};
#define N_LAYERS 3

static struct daemon daemon_;
static struct ranks ranks;

static void setup(void)
{
	setenv("FAKECUDA_COUNT", "1", 1);
	daemon_start_supervised(&daemon_);
}

static void teardown(void)
{
	ranks_stop(&ranks);
	daemon_stop(&daemon_);
}

CHECKED_SUITE(offload, setup, teardown, .timeout = 300);

static void start(uint32_t n)
{
	crew_set(&(struct crew){
		.daemon = &daemon_,
		.comm = "test",
		.layers = LAYERS,
		.n_layers = N_LAYERS,
	});
	ranks_start(&ranks, n);
}

static void all(actor_fn *fn)
{
	int r = ranks_run(&ranks, fn);

	cr_assert(zero(int, r), "%s", ranks.notes[0].sentence);
}

/* --- in a rank ----------------------------------------------------------- */

static int see_all_whole(void)
{
	for (size_t i = 0; i < N_LAYERS; i++) {
		int r = trainer_unshard(i);

		if (r < 0)
			return r;
		if (!trainer_sees_whole(i))
			return rank_say(-EILSEQ, "a layer is not whole");
		r = trainer_reshard(i);
		if (r < 0)
			return r;
	}
	return 0;
}

static double mean0(size_t param, uint64_t index)
{
	double sum = 0;

	for (uint32_t rank = 0; rank < rank_world(); rank++)
		sum += gradient_of(rank, param, index, 0);
	return sum / rank_world();
}

static int see_all_reduced(void)
{
	for (size_t i = 0; i < N_LAYERS; i++) {
		int r = trainer_reduce(i, 0, NULL, true);

		if (r < 0)
			return r;
		if (!trainer_sees_gradients(i, mean0))
			return rank_say(-EILSEQ, "a gradient is wrong");
	}
	return 0;
}

/* Copy to and from a shard and an input with calls that work for both kinds of
 * memory, because the CPU cannot access memory of the device. */
static int copy_there_and_back(void)
{
	float values[10] = {1, 2, 3}, seen[10] = {0};
	struct fsdp_shard shard = {.struct_size = sizeof(shard)};
	int r = fsdp_shard(trainer()->groups[0], 0, &shard);

	for (int i = 0; r == 0 && i < 2; i++) {
		void *at = i ? fsdp_input_data(trainer()->groups[0], 0)
			     : shard.next;

		r = fsdp_group_put(trainer()->groups[0], at, values, 8);
		if (r == 0)
			r = fsdp_group_get(trainer()->groups[0], seen, at, 8);
		if (r == 0 && memcmp(seen, values, 8) != 0)
			return rank_say(-EILSEQ, "not what was put");
	}
	if (r == 0 && memcmp(shard.next, values, 8) != 0)
		return rank_say(-EILSEQ, "it is not where the CPU sees it");
	return rank_note(r);
}

static int take_input(void)
{
	return rank_note(fsdp_input(trainer()->groups[0], -1));
}

static int count_pinned(void)
{
	long n = gpu_count(getpid(), "MemHostRegister");

	return (int)(n - gpu_count(getpid(), "MemHostUnregister"));
}

static int see_none_pinned(void)
{
	return count_pinned() == 0 ? 0 : rank_say(-EBUSY, "pages stay pinned");
}

/* --- tests --------------------------------------------------------------- */

Test(offload, groups_of_both_kinds_are_gathered_and_reduced)
{
	start(2);
	all(trainer_join);
	all(trainer_commit);
	all(see_all_whole);
	all(see_all_reduced);
	/* The second commit carries the frozen parameters over. */
	all(trainer_commit);
	all(see_all_whole);
}

Test(offload, bytes_are_copied_in_host_and_device_memory)
{
	start(1);
	all(trainer_join);
	all(take_input);
	all(copy_there_and_back);
}

Test(offload, pages_are_pinned_until_the_rank_leaves)
{
	start(2);
	all(trainer_join);
	if (is_fake())
		cr_expect(gt(int, rank_run(&ranks, 0, count_pinned), 3));
	all(trainer_leave);
	all(see_none_pinned);
}

Test(offload, shards_outlive_their_ranks_and_the_broker)
{
	start(2);
	all(trainer_join);
	all(trainer_commit);
	all(trainer_leave);
	daemon_kill_broker(&daemon_);
	all(trainer_join);
	all(see_all_whole);
	all(trainer_commit);
	all(see_all_whole);
}

/* --- side by side -------------------------------------------------------- */

#define N_BLOCKS 4

/* The groups have the same size, so that they use the same buffers, but
 * different values. */
static const struct layer BLOCKS[N_BLOCKS] = {
	{.name = "b0", .params = LARGE, .n = 1, .policy = {.offload = true}},
	{.name = "b1", .params = LARGE, .n = 1, .policy = {.offload = true}},
	{.name = "b2", .params = LARGE, .n = 1, .policy = {.offload = true}},
	{.name = "b3", .params = LARGE, .n = 1, .policy = {.offload = true}},
};

static void start_blocks(void)
{
	crew_set(&(struct crew){
		.daemon = &daemon_,
		.comm = "test",
		.options = {.limit = N_BLOCKS, .n_inputs = N_BLOCKS},
		.layers = BLOCKS,
		.n_layers = N_BLOCKS,
	});
	ranks_start(&ranks, 2);
	all(trainer_join);
	all(trainer_commit);
}

static int begin_all(void)
{
	int r = 0;

	for (size_t i = 0; i < N_BLOCKS && r == 0; i++)
		r = fsdp_unshard(trainer()->groups[i], &trainer()->works[i]);
	return rank_note(r);
}

static int end_all(void)
{
	int r = 0;

	for (size_t i = 0; i < N_BLOCKS && r == 0; i++) {
		r = fsdp_wait(&trainer()->works[i], -1);
		if (r == 0 && !trainer_sees_whole(i))
			return rank_say(-EILSEQ, "a layer is not whole");
		if (r == 0)
			r = fsdp_reshard(trainer()->groups[i], 0);
	}
	return rank_note(r);
}

static int copy_beside_a_gather(void)
{
	long before = gpu_count(getpid(), "pinned_copies_in");
	int r = begin_all();

	/* The other rank has not begun any, so no gather can end. */
	while (r == 0 && gpu_count(getpid(), "pinned_copies_in") < before + 2)
		nap_ms(1);
	return r;
}

Test(offload, the_next_shards_are_copied_during_a_gather)
{
	need_fake("copies are counted");
	start_blocks();
	cr_assert(zero(int, rank_run(&ranks, 0, copy_beside_a_gather)));
	cr_assert(zero(int, rank_run(&ranks, 1, begin_all)));
	all(end_all);
}

/* Write different gradients for each group. */
static int fill_all(void)
{
	int r = 0;

	for (size_t i = 0; i < N_BLOCKS && r == 0; i++)
		r = trainer_fill_input(i, (uint32_t)i);
	return r;
}

static int reduce_all(const struct fsdp_reduce_options *options)
{
	struct fsdp_work works[N_BLOCKS];
	int r = 0;

	for (size_t i = 0; i < N_BLOCKS && r == 0; i++)
		r = fsdp_reduce(trainer()->groups[i], options, &works[i]);
	for (size_t i = 0; i < N_BLOCKS && r == 0; i++)
		r = fsdp_wait(&works[i], -1);
	return rank_note(r);
}

static int reduce_anew(void)
{
	return reduce_all(NULL);
}

static int add_to_sums(void)
{
	return reduce_all(&(struct fsdp_reduce_options){.accumulates = true});
}

static size_t block; /* block of the expected gradients */

/* Returns twice the mean of the gradients. */
static double sum_of_block(size_t param, uint64_t index)
{
	double sum = 0;

	for (uint32_t rank = 0; rank < rank_world(); rank++)
		sum += gradient_of(rank, param, index, (uint32_t)block);
	return 2 * sum / rank_world();
}

static int see_all_sums(void)
{
	for (block = 0; block < N_BLOCKS; block++) {
		if (!trainer_sees_gradients(block, sum_of_block))
			return rank_say(-EILSEQ, "a gradient is wrong");
	}
	return 0;
}

Test(offload, a_staging_buffer_is_not_overwritten_before_it_was_read)
{
	setenv("FAKECUDA_COPY_US", "10000", 1);
	start_blocks();
	for (int i = 0; i < 3; i++) {
		/* All works of a rank wait for the other rank, so beginning
		 * them does not block. */
		cr_assert(zero(int, rank_run(&ranks, 0, begin_all)));
		cr_assert(zero(int, rank_run(&ranks, 1, begin_all)));
		all(end_all);
		all(fill_all);
		all(reduce_anew);
		all(fill_all);
		all(add_to_sums);
		all(trainer_commit);
		all(see_all_sums);
	}
}

/* --- refusals ------------------------------------------------------------ */

/* Join with another policy than the others. */
static int join_without(void)
{
	struct layer layers[N_LAYERS];

	memcpy(layers, LAYERS, sizeof(layers));
	layers[0].policy.offload = rank_self() != 1;
	crew_set(&(struct crew){
		.daemon = &daemon_,
		.comm = "test",
		.layers = layers,
		.n_layers = 1,
	});
	return trainer_join();
}

Test(offload, ranks_must_agree_about_offload)
{
	start(2);
	ranks_begin(&ranks, join_without);
	ranks_end(&ranks);
	cr_expect(eq(int, ranks.notes[0].code, -EINVAL));
	cr_expect(eq(int, ranks.notes[1].code, -EINVAL));
	assert_says(0, "the place of the shards is in host memory");
	assert_says(1, "the place of the shards is on devices");
}

static int offload_on_host_memory(void)
{
	const struct fsdp_connect_options options = {
		.path = daemon_socket(&daemon_)};
	const struct fsdp_policy policy = {.offload = true};
	struct fsdp_client *client;
	struct fsdp_group *group;
	struct fsdp_comm *comm;
	int r = fsdp_connect(&options, &client);

	if (r == 0)
		r = fsdp_comm_join(client, "host", 1, 0, NULL, &comm);
	if (r == 0)
		r = fsdp_group_register(comm, "layer", PARAMS, 1, &policy,
					&group);
	return rank_note(r);
}

Test(offload, offload_is_refused_for_host_memory)
{
	start(1);
	cr_expect(
		eq(int, rank_run(&ranks, 0, offload_on_host_memory), -EINVAL));
	assert_says(0, "is in host memory");
}

static int join_by_worker(void)
{
	setenv("FSDP_TEST_EXECUTOR", "worker", 1);
	return trainer_join();
}

Test(offload, offload_is_refused_with_the_worker_as_executor)
{
	start(1);
	cr_expect(eq(int, rank_run(&ranks, 0, join_by_worker), -EINVAL));
	assert_says(0, "fsdp-worker cannot offload");
}

/* Let the driver refuse to register more pages in rank 0. That rank leaves, and
 * the others are told. */
static int join_without_pages(void)
{
	int r;

	if (rank_self() == 0)
		setenv("FAKECUDA_FAIL", "MemHostRegister:2:2", 1);
	r = trainer_join();
	if (r < 0)
		(void)trainer_leave();
	return r;
}

Test(offload, a_failure_to_pin_memory_is_reported)
{
	need_fake("calls must fail");
	start(2);
	ranks_begin(&ranks, join_without_pages);
	ranks_end(&ranks);
	cr_expect(eq(int, ranks.notes[0].code, -ENOMEM));
	cr_expect(eq(int, ranks.notes[1].code, -ECONNABORTED));
	assert_says(0, "of host memory for");
	/* The calls include the registration that was refused. */
	cr_expect(eq(int, rank_run(&ranks, 0, count_pinned), 1));
	cr_expect(zero(int, rank_run(&ranks, 1, count_pinned)));
}
