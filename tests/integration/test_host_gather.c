/*
 * Tests gathers that ranks on host memory do themselves. If a rank dies at any
 * point, no rank waits for ever, whether the others sleep, spin or copy. Also
 * tests fsdp_test(), and that the ranks make no requests to the broker.
 */
#include "tests/lib/chaos.h"
#include "tests/lib/check.h"
#include "tests/lib/crew.h"
#include "tests/lib/ending.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

static const struct fsdp_param_spec PARAMS[] = {
	{.name = "weight", .spec = {FSDP_F32, 2, {509, 64}}},
	{.name = "bias", .spec = {FSDP_F32, 1, {7}}},
};

static const struct layer LAYERS[] = {
	LAYER("flat", PARAMS, .policy = {.layout = FSDP_LAYOUT_FLAT}),
	LAYER("cast", PARAMS, .policy = {.param_dtype = FSDP_BF16}),
	LAYER("other", PARAMS, .policy = {.param_dtype = FSDP_BF16}),
};
#define N_LAYERS 3

CHECKED_SUITE(host_gather, crew_setup_supervised, crew_teardown,
	      .timeout = 300);

static const struct crew CREW = {.layers = LAYERS, .n_layers = N_LAYERS};

static void start(const struct fsdp_comm_options *options)
{
	struct crew crew = CREW;

	if (options)
		crew.options = *options;
	crew_start(2, &crew);
	cr_assert(zero(int, ranks_run(&ranks, trainer_commit)));
}

static int use(size_t layer)
{
	struct fsdp_group *group = trainer()->groups[layer];
	struct fsdp_work work;
	int r = fsdp_unshard(group, &work);

	if (r == 0)
		r = fsdp_wait(&work, -1);
	if (r == 0 && !trainer_sees_whole(layer))
		return -EIO;
	if (r == 0)
		r = fsdp_reshard(group, 0);
	return rank_note(r);
}

static int use_until_told(void)
{
	int r = 0;

	for (size_t i = 0; r == 0; i++)
		r = use(i % N_LAYERS);
	return r;
}

static int test1(void)
{
	return rank_note(fsdp_test(&trainer()->works[1]));
}

static int test0_until_whole(void)
{
	int r;

	do
		r = fsdp_test(&trainer()->works[0]);
	while (r == -EAGAIN);
	if (r == 0 && !trainer_sees_whole(0))
		return -EIO;
	return rank_note(r);
}

/* --- deaths -------------------------------------------------------------- */

/* The points are: the rank has begun; has the lock; has a piece, before and
 * after the copy; has copied the last piece, but not told the others; has
 * resharded, but not told the others. */
static void kill_at_each_point(const char *held_at)
{
	static const char *const points[] = {
		"gathers.ordered",   "gathers.locked",     "pieces.opened",
		"host_gather.taken", "host_gather.copied", "host_gather.done",
		"gathers.ended"};
	uint32_t n_held = 0;

	if (!chaos_has_points())
		cr_skip_test("built without points");
	for (size_t i = 0; i < sizeof(points) / sizeof(*points); i++) {
		crew_start_mortal(2, &CREW);
		cr_assert(zero(int, ranks_run(&ranks, trainer_commit)));
		n_held += expect_death_is_told(
			&(struct death){points[i], held_at ? 1 : 3, held_at},
			use_until_told);
	}
	cr_assert(!held_at || n_held > 0);
	/* The next run has the committed values. */
	start(NULL);
	cr_assert(zero(int, ranks_run(&ranks, begin0)));
	cr_assert(zero(int, ranks_run(&ranks, await0)));
}

Test(host_gather, a_sleeping_rank_gets_an_error_after_a_death_at_any_failpoint)
{
	kill_at_each_point(NULL);
}

Test(host_gather, a_spinning_rank_gets_an_error_after_a_death_at_any_failpoint)
{
	kill_at_each_point(SPINNING);
}

Test(host_gather, a_copying_rank_gets_an_error_after_a_death_at_any_failpoint)
{
	kill_at_each_point("host_gather.taken");
}

Test(host_gather, a_rank_that_waits_for_the_limiter_gets_an_error_after_a_death)
{
	start(&(struct fsdp_comm_options){.limit = 1});
	cr_assert(zero(int, ranks_run(&ranks, begin0)));
	cr_assert(zero(int, ranks_run(&ranks, await0)));
	cr_assert(zero(int, rank_run(&ranks, 0, reshard0)));
	cr_assert(zero(int, rank_run(&ranks, 0, begin1)));
	actor_begin(&ranks.actors[0], await1);
	actor_kill(&ranks.actors[1]);
	cr_assert(eq(int, actor_end(&ranks.actors[0]), -ECONNABORTED));
	assert_says(0, "rank 1 (pid ");
}

Test(host_gather,
     a_waiting_rank_gets_the_error_before_the_kernel_reports_the_death)
{
	pid_t thread;

	start(&(struct fsdp_comm_options){.limit = 1});
	cr_assert(zero(int, ranks_run(&ranks, begin0)));
	cr_assert(zero(int, ranks_run(&ranks, await0)));
	cr_assert(zero(int, rank_run(&ranks, 0, reshard0)));
	cr_assert(zero(int, rank_run(&ranks, 0, begin1)));
	thread = rank_run(&ranks, 1, ending_thread);
	actor_begin(&ranks.actors[0], await1);
	ending_begin(ranks.actors[1].pid, thread);
	cr_assert(eq(int, actor_end(&ranks.actors[0]), -ECONNABORTED));
	assert_says(0, "rank 1 (pid ");
	ending_end(thread);
	actor_kill(&ranks.actors[1]);
}

Test(host_gather,
     a_rank_that_waits_for_the_limiter_gets_an_error_when_another_leaves)
{
	start(&(struct fsdp_comm_options){.limit = 1});
	cr_assert(zero(int, ranks_run(&ranks, begin0)));
	cr_assert(zero(int, ranks_run(&ranks, await0)));
	cr_assert(zero(int, rank_run(&ranks, 0, reshard0)));
	cr_assert(zero(int, rank_run(&ranks, 0, begin1)));
	actor_begin(&ranks.actors[0], await1);
	cr_assert(zero(int, rank_run(&ranks, 1, crew_leave_comm)));
	cr_assert(eq(int, actor_end(&ranks.actors[0]), -ECONNABORTED));
	assert_says(0, "rank 1");
	assert_says(0, "left");
}

static int use0(void)
{
	return use(0);
}

static int use1(void)
{
	return use(1);
}

static int use2(void)
{
	return use(2);
}

/* All ranks finish with each layer before they begin the next one, which
 * therefore finds its memory free. */
static void use_all_and_begin0(void)
{
	cr_assert(zero(int, ranks_run(&ranks, use0)));
	cr_assert(zero(int, ranks_run(&ranks, use1)));
	cr_assert(zero(int, ranks_run(&ranks, use2)));
	cr_assert(zero(int, ranks_run(&ranks, begin0)));
}

/* The gathered values are in the memory that the earlier broker has
 * allocated. */
Test(host_gather, the_memory_of_gathers_outlives_the_broker)
{
	uint64_t n_bytes;

	start(NULL);
	use_all_and_begin0();
	cr_assert(zero(int, rank_run(&ranks, 0, await0)));
	n_bytes = status_value(client, "bytes_live");
	daemon_kill_broker(&daemon_);
	cr_assert(zero(int, rank_run(&ranks, 1, test0_until_whole)));
	cr_assert(zero(int, ranks_run(&ranks, reshard0)));
	use_all_and_begin0();
	cr_assert(eq(u64, status_value(client, "bytes_live"), n_bytes));
	cr_assert(zero(int, ranks_run(&ranks, await0)));
	cr_assert(zero(int, ranks_run(&ranks, reshard0)));
	cr_assert(zero(int, ranks_run(&ranks, trainer_commit)));
	/* The next broker knows what the run kept, and can free it. */
	cr_assert(zero(int, ranks_run(&ranks, trainer_leave)));
	cr_assert(zero(int, fsdp_comm_remove(client, "test")));
	cr_assert(status_await(client, "bytes_live", 0));
}

/* --- time-outs ----------------------------------------------------------- */

#define TIMEOUT_MS 5000

static const char *hold_plan(void)
{
	static char path[64];

	(void)snprintf(path, sizeof(path), "%s/hold", daemon_.dir);
	return path;
}

static int obey_hold_plan(void)
{
	return setenv("FSDP_STOP_PLAN", hold_plan(), 1);
}

static int reshard0_to_mesh(void)
{
	return rank_note(fsdp_reshard(trainer()->groups[0], 1));
}

/* Rank 1 is stopped at a failpoint while both run `fn`, until rank 0 waits for
 * it. */
static void wait_for_stopped_rank(const char *point, actor_fn *fn)
{
	plan_death(hold_plan(), point, 1);
	actor_begin(&ranks.actors[1], fn);
	while (!plan_is_done(hold_plan()))
		nap_ms(1);
	actor_begin(&ranks.actors[0], fn);
	ranks_await_still(&ranks, 2);
	must(kill(ranks.actors[1].pid, SIGCONT) == 0);
	cr_assert(zero(int, actor_end(&ranks.actors[0])), "%s", sentence(0));
	cr_assert(zero(int, actor_end(&ranks.actors[1])));
}

/* Rank 0 waits for a piece, uses the parameters for longer than the time-out,
 * and then waits for the lock. */
Test(host_gather, a_reshard_has_the_full_time_for_the_lock)
{
	if (!chaos_has_points())
		cr_skip_test("built without points");
	start(&(struct fsdp_comm_options){.timeout_ms = TIMEOUT_MS});
	cr_assert(zero(int, rank_run(&ranks, 1, obey_hold_plan)));
	cr_assert(zero(int, ranks_run(&ranks, begin0)));
	wait_for_stopped_rank("host_gather.taken", await0);
	nap_ms(TIMEOUT_MS);
	wait_for_stopped_rank("gathers.locked", reshard0_to_mesh);
}

/* --- counting ------------------------------------------------------------ */

static int add_count(const struct fsdp_group_entry *entry, void *data)
{
	uint64_t *counts = data;

	for (size_t i = 0; i < N_LAYERS; i++) {
		if (!strcmp(entry->name, LAYERS[i].name))
			counts[i] = entry->n_gathers;
	}
	return 0;
}

static void expect_counts(uint64_t n0, uint64_t n1, uint64_t n2)
{
	uint64_t counts[N_LAYERS] = {UINT64_MAX, UINT64_MAX, UINT64_MAX};

	cr_assert(zero(int, fsdp_groups(client, "test", add_count, counts)));
	cr_expect(eq(u64, counts[0], n0));
	cr_expect(eq(u64, counts[1], n1));
	cr_expect(eq(u64, counts[2], n2));
}

Test(host_gather, the_gathers_of_each_group_are_counted_in_all_runs)
{
	start(NULL);
	expect_counts(0, 0, 0);
	cr_assert(zero(int, ranks_run(&ranks, use0)));
	cr_assert(zero(int, ranks_run(&ranks, use0)));
	cr_assert(zero(int, ranks_run(&ranks, use1)));
	expect_counts(2, 1, 0);
	daemon_kill_broker(&daemon_);
	expect_counts(2, 1, 0);
	cr_assert(zero(int, ranks_run(&ranks, use1)));
	expect_counts(2, 2, 0);
	cr_assert(zero(int, ranks_run(&ranks, trainer_leave)));
	expect_counts(2, 2, 0);
	cr_assert(zero(int, ranks_run(&ranks, trainer_join)));
	cr_assert(zero(int, ranks_run(&ranks, use2)));
	expect_counts(2, 2, 1);
}

/* --- without waiting ----------------------------------------------------- */

Test(host_gather, testing_a_gather_copies_piece_by_piece)
{
	start(NULL);
	cr_assert(zero(int, ranks_run(&ranks, begin0)));
	/* The other rank does not come. */
	cr_assert(zero(int, rank_run(&ranks, 0, test0_until_whole)));
	cr_assert(zero(int, rank_run(&ranks, 0, await0)));
	cr_assert(zero(int, rank_run(&ranks, 1, test0_until_whole)));
	cr_assert(eq(u64, status_value(client, "gathers"), 1));
}

Test(host_gather, testing_a_gather_reports_for_what_it_waits)
{
	start(&(struct fsdp_comm_options){.limit = 1});
	cr_assert(zero(int, ranks_run(&ranks, begin0)));
	cr_assert(zero(int, rank_run(&ranks, 0, await0)));
	cr_assert(zero(int, rank_run(&ranks, 0, begin1)));
	cr_assert(eq(int, rank_run(&ranks, 0, test1), -EAGAIN));
	assert_says(0, "waits for the limiter until 'flat' is resharded");
	cr_assert(zero(int, ranks_run(&ranks, reshard0)));
	cr_assert(zero(int, rank_run(&ranks, 0, await1)));
	cr_assert(zero(int, rank_run(&ranks, 0, test1)));
}

static int test_commit(void)
{
	struct trainer *self = trainer();
	struct fsdp_work work;
	int r = fsdp_commit(self->comm, self->step + 1, &work);

	return rank_note(r < 0 ? r : fsdp_test(&work));
}

Test(host_gather, testing_a_commit_is_done_by_the_broker)
{
	start(NULL);
	cr_assert(eq(int, rank_run(&ranks, 0, test_commit), -EAGAIN));
	cr_assert(zero(int, rank_run(&ranks, 1, trainer_commit)));
}

/* --- order --------------------------------------------------------------- */

static int begin_commit(void)
{
	struct trainer *self = trainer();
	struct fsdp_work work;

	return rank_note(fsdp_commit(self->comm, self->step + 1, &work));
}

Test(host_gather, a_commit_instead_of_a_gather_is_refused)
{
	start(NULL);
	cr_assert(zero(int, rank_run(&ranks, 0, begin0)));
	cr_assert(eq(int, rank_run(&ranks, 1, begin_commit), -EINVAL));
	assert_says(1, "unshard 'flat', which rank 0 began");
	cr_assert(zero(int, rank_run(&ranks, 1, begin0)));
	cr_assert(zero(int, ranks_run(&ranks, reshard0)));
	cr_assert(zero(int, ranks_run(&ranks, trainer_commit)));
}

Test(host_gather, a_gather_instead_of_a_commit_is_refused)
{
	start(NULL);
	cr_assert(zero(int, rank_run(&ranks, 0, begin_commit)));
	cr_assert(eq(int, rank_run(&ranks, 1, begin0), -EINVAL));
	assert_says(1, "rank 0 commits next");
	cr_assert(zero(int, rank_run(&ranks, 1, trainer_commit)));
}

/* --- memory -------------------------------------------------------------- */

/* Both versions and the gradients have 4 MiB each in all ranks together. The
 * whole group has 2 MiB. */
static const struct fsdp_param_spec LARGE[] = {
	{.name = "weight", .spec = {FSDP_F32, 2, {1024, 1024}}},
};
static const struct layer LARGE_LAYERS[] = {
	{.name = "large",
	 .params = LARGE,
	 .n = 1,
	 .policy = {.param_dtype = FSDP_BF16}},
};

/* Start two ranks that have gathered once and keep the buffer of that. */
static void start_with_little_memory(void)
{
	crew_use_little_memory(2);
	crew_start(2, &(struct crew){.layers = LARGE_LAYERS, .n_layers = 1});
	cr_assert(zero(int, ranks_run(&ranks, trainer_commit)));
	cr_assert(zero(int, ranks_run(&ranks, use0)));
}

/* Allocate 3 MiB, which do not fit while the ranks keep the buffer of 2 MiB. */
static int alloc_rest(int32_t timeout_ms, struct fsdp_tensor **ret)
{
	const struct fsdp_spec spec = {FSDP_U8, 1, {3 << 20}};

	return fsdp_alloc(client, &spec, 1, NULL, timeout_ms, ret);
}

Test(host_gather, idle_memory_is_freed_for_a_client_that_was_refused)
{
	struct fsdp_tensor *rest;

	start_with_little_memory();
	cr_assert(lt(int, alloc_rest(0, &rest), 0));
	cr_assert(zero(int, ranks_run(&ranks, trainer_commit)));
	cr_assert(zero(int, alloc_rest(0, &rest)), "%s", fsdp_error());
	/* The ranks need memory again, and wait for it. */
	actor_begin(&ranks.actors[0], use0);
	cr_assert(status_await(client, "waiters", 1));
	actor_begin(&ranks.actors[1], use0);
	fsdp_free(rest);
	cr_expect(zero(int, actor_end(&ranks.actors[0])));
	cr_expect(zero(int, actor_end(&ranks.actors[1])));
}

static void *alloc_patiently(void *data)
{
	struct fsdp_tensor *rest = NULL;
	int *code = data;

	*code = alloc_rest(-1, &rest);
	fsdp_free(rest);
	return NULL;
}

Test(host_gather, idle_memory_is_freed_for_a_client_that_waits)
{
	pthread_t thread;
	int code = 1;

	start_with_little_memory();
	cr_assert(zero(int,
		       pthread_create(&thread, NULL, alloc_patiently, &code)));
	cr_assert(status_await(client, "waiters", 1));
	cr_assert(zero(int, ranks_run(&ranks, trainer_commit)));
	cr_assert(zero(int, pthread_join(thread, NULL)));
	cr_expect(zero(int, code));
	cr_expect(zero(int, ranks_run(&ranks, use0)));
}

/* Memory that is in use is not recalled, whoever waits for memory. */
Test(host_gather, memory_in_use_is_not_freed)
{
	struct fsdp_tensor *rest;

	start_with_little_memory();
	cr_assert(zero(int, ranks_run(&ranks, begin0)));
	cr_assert(zero(int, ranks_run(&ranks, await0)));
	cr_assert(lt(int, alloc_rest(0, &rest), 0));
	cr_assert(zero(int, rank_run(&ranks, 0, reshard0)));
	cr_assert(lt(int, alloc_rest(0, &rest), 0));
	cr_assert(zero(int, rank_run(&ranks, 1, test0_until_whole)));
	cr_assert(zero(int, rank_run(&ranks, 1, reshard0)));
	cr_assert(zero(int, ranks_run(&ranks, trainer_commit)));
	cr_assert(zero(int, alloc_rest(0, &rest)), "%s", fsdp_error());
	fsdp_free(rest);
}

/* A rank that has gathered leaves before the other rank has looked, and its
 * memory is recalled. The other rank then gathers by itself. */
Test(host_gather, values_whose_memory_was_freed_are_gathered_again)
{
	struct fsdp_tensor *rest;
	uint64_t used;

	start_with_little_memory();
	cr_assert(lt(int, alloc_rest(0, &rest), 0));
	cr_assert(zero(int, ranks_run(&ranks, trainer_commit)));
	cr_assert(zero(int, ranks_run(&ranks, trainer_commit)));
	used = status_value(client, "bytes_live");
	cr_assert(zero(int, ranks_run(&ranks, begin0)));
	cr_assert(zero(int, rank_run(&ranks, 0, await0)));
	cr_assert(ne(u64, status_value(client, "bytes_live"), used));
	cr_assert(zero(int, rank_run(&ranks, 0, reshard0)));
	cr_assert(lt(int, alloc_rest(0, &rest), 0));
	cr_assert(zero(int, rank_run(&ranks, 0, crew_leave_comm)));
	cr_assert(status_await(client, "bytes_live", used));
	cr_assert(zero(int, rank_run(&ranks, 1, await0)));
	cr_assert(zero(int, rank_run(&ranks, 1, test0_until_whole)));
}

/* A client that has used up its own budget is refused. That does not recall the
 * idle buffer of the ranks. */
Test(host_gather, idle_memory_is_kept_if_only_a_budget_is_exceeded)
{
	const struct fsdp_connect_options options = {
		.path = daemon_socket(&daemon_), .budget = 64 << 10};
	const struct fsdp_spec spec = {FSDP_U8, 1, {48 << 10}};
	struct fsdp_tensor *tensors[2];
	struct fsdp_client *poor;
	uint64_t used;

	start_with_little_memory();
	cr_assert(zero(int, fsdp_connect(&options, &poor)));
	cr_assert(zero(int, fsdp_alloc(poor, &spec, 1, NULL, 0, &tensors[0])));
	used = status_value(client, "bytes_live");
	cr_assert(eq(int, fsdp_alloc(poor, &spec, 1, NULL, 0, &tensors[1]),
		     -EDQUOT));
	cr_assert(zero(int, ranks_run(&ranks, trainer_commit)));
	cr_assert(zero(int, ranks_run(&ranks, trainer_commit)));
	cr_expect(eq(u64, status_value(client, "bytes_live"), used));
	fsdp_close(poor);
}

/* --- memory that ranks keep ---------------------------------------------- */

/* Two ranks keep 12 MiB of the large group, and need 2 MiB for its whole
 * parameters and 2 MiB for each input, so not all of this fits. */
static int reduce_large(void)
{
	return trainer_reduce(0, 0, NULL, true);
}

Test(host_gather, idle_buffers_are_used_for_inputs)
{
	start_with_little_memory();
	cr_assert(zero(int, ranks_run(&ranks, reduce_large)));
}

static int fill_and_meet(void)
{
	int r = trainer_fill_input(0, 0);

	return r < 0 ? r : rank_note(fsdp_barrier(trainer()->comm, -1));
}

static int reshard_and_meet(void)
{
	int r = trainer_reshard(0);

	return r < 0 ? r : rank_note(fsdp_barrier(trainer()->comm, -1));
}

/* Rank 0 waits for an input already when rank 1 reshards. */
Test(host_gather, buffers_that_become_idle_are_used_for_inputs)
{
	const struct fsdp_spec spec = {FSDP_U8, 1, {1 << 20}};
	struct fsdp_tensor *tensor;

	start_with_little_memory();
	cr_assert(zero(int, fsdp_alloc(client, &spec, 1, NULL, -1, &tensor)));
	cr_assert(zero(int, ranks_run(&ranks, begin0)));
	cr_assert(zero(int, ranks_run(&ranks, await0)));
	cr_assert(zero(int, rank_run(&ranks, 0, reshard0)));
	actor_begin(&ranks.actors[0], fill_and_meet);
	cr_assert(status_await(client, "waiters", 1));
	cr_expect(zero(int, rank_run(&ranks, 1, reshard_and_meet)));
	cr_expect(zero(int, actor_end(&ranks.actors[0])));
	fsdp_free(tensor);
}

Test(host_gather, idle_inputs_are_used_for_buffers)
{
	crew_use_little_memory(2);
	crew_start(2, &(struct crew){.layers = LARGE_LAYERS, .n_layers = 1});
	cr_assert(zero(int, ranks_run(&ranks, trainer_commit)));
	cr_assert(zero(int, ranks_run(&ranks, reduce_large)));
	cr_assert(zero(int, ranks_run(&ranks, use0)));
}

static int register_more(void)
{
	static const struct fsdp_param_spec more[] = {
		{.name = "weight", .spec = {FSDP_F32, 2, {1024, 256}}},
	};
	struct fsdp_policy policy = {0};
	struct trainer *self = trainer();

	return rank_note(fsdp_group_register(self->comm, "more", more, 1,
					     &policy, &self->groups[1]));
}

Test(host_gather, idle_buffers_are_used_for_another_group)
{
	start_with_little_memory();
	cr_assert(zero(int, ranks_run(&ranks, register_more)));
}

/* All of this has half the size. */
static const struct fsdp_param_spec HALF[] = {
	{.name = "weight", .spec = {FSDP_F32, 2, {512, 1024}}},
};
static const struct layer HALF_LAYERS[] = {
	{.name = "half",
	 .params = HALF,
	 .n = 1,
	 .policy = {.param_dtype = FSDP_BF16, .reduce_dtype = FSDP_BF16}},
};

static int put_off(void)
{
	const struct fsdp_reduce_options options = {.no_all_reduce = true};

	return trainer_reduce(0, 0, &options, true);
}

/* Two replicas have as much memory as two shards of the large group. */
Test(host_gather, idle_buffers_are_used_for_partial_sums)
{
	crew_use_little_memory(2);
	crew_start(2, &(struct crew){.options = {.n_shards = 1},
				     .layers = HALF_LAYERS,
				     .n_layers = 1});
	cr_assert(zero(int, ranks_run(&ranks, trainer_commit)));
	cr_assert(zero(int, ranks_run(&ranks, use0)));
	cr_assert(zero(int, ranks_run(&ranks, put_off)));
}

/* A loop that only gathers returns inputs, too. The client's 8.5 MiB fit beside
 * the group's 6 MiB and a buffer of 1 MiB, but not beside two inputs of 1 MiB
 * as well. */
Test(host_gather, idle_inputs_are_freed_by_ranks_that_only_gather)
{
	const struct fsdp_spec spec = {FSDP_U8, 1, {17 << 19}};
	struct fsdp_tensor *tensor;

	crew_use_little_memory(2);
	crew_start(2, &(struct crew){.layers = HALF_LAYERS, .n_layers = 1});
	cr_assert(zero(int, ranks_run(&ranks, trainer_commit)));
	cr_assert(zero(int, ranks_run(&ranks, reduce_large)));
	cr_assert(lt(int, fsdp_alloc(client, &spec, 1, NULL, 0, &tensor), 0));
	/* Both ranks return their inputs before the buffer is allocated. */
	cr_assert(zero(int, ranks_run(&ranks, begin0)));
	cr_assert(zero(int, ranks_run(&ranks, await0)));
	cr_assert(zero(int, ranks_run(&ranks, reshard0)));
	cr_assert(zero(int, fsdp_alloc(client, &spec, 1, NULL, 0, &tensor)));
	fsdp_free(tensor);
}
