/*
 * Tests reductions of gradients: the values in the shards, which options can be
 * combined, which inputs a rank may hand in, and what happens when a process
 * dies in between.
 */
#include "shm/board.h"
#include "tests/lib/chaos.h"
#include "tests/lib/check.h"
#include "tests/lib/crew.h"
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>

static const struct fsdp_param_spec PLAIN[] = {
	{.name = "weight", .spec = {FSDP_F32, 2, {5, 4}}},
	{.name = "small", .spec = {FSDP_F32, 2, {2, 3}}},
	{.name = "frozen", .spec = {FSDP_F32, 1, {7}}, .is_frozen = true},
};

static const struct fsdp_param_spec MIXED[] = {
	{.name = "weight", .spec = {FSDP_F32, 2, {3, 8}}, .shard_dim = 1},
	{.name = "double", .spec = {FSDP_F64, 1, {9}}},
	{.name = "table", .spec = {FSDP_I32, 1, {6}}, .is_frozen = true},
};

static const struct layer KINDS[] = {
	LAYER("plain", PLAIN),
	LAYER("cast", PLAIN, .policy = {.param_dtype = FSDP_BF16}),
	LAYER("flat", PLAIN, .policy = {.layout = FSDP_LAYOUT_FLAT}),
	LAYER("mixed", MIXED,
	      .policy = {.param_dtype = FSDP_BF16, .reduce_dtype = FSDP_F32}),
	LAYER("inputs", MIXED,
	      .policy = {.param_dtype = FSDP_BF16,
			 .input_dtype = FSDP_F64,
			 .reduce_dtype = FSDP_F32}),
};
#define N_KINDS 5

CHECKED_SUITE(reduce, crew_setup, crew_teardown, .timeout = 300);

static void start(uint32_t n, const struct fsdp_comm_options *options)
{
	struct crew crew = {.layers = KINDS, .n_layers = N_KINDS};

	if (options)
		crew.options = *options;
	crew_start(n, &crew);
}

/* --- sums ---------------------------------------------------------------- */

/* Returns the sum of the gradients of one round over all ranks. */
static double sum_of(size_t param, uint64_t index, uint32_t round)
{
	double sum = 0;

	for (uint32_t rank = 0; rank < rank_world(); rank++)
		sum += gradient_of(rank, param, index, round);
	return sum;
}

static double mean0(size_t param, uint64_t index)
{
	return sum_of(param, index, 0) / rank_world();
}

static double mean1(size_t param, uint64_t index)
{
	return sum_of(param, index, 1) / rank_world();
}

static double mean01(size_t param, uint64_t index)
{
	return mean0(param, index) + mean1(param, index);
}

static double half0(size_t param, uint64_t index)
{
	return sum_of(param, index, 0) / 2;
}

static const struct fsdp_reduce_options ACCUMULATES = {.accumulates = true};
static const struct fsdp_reduce_options PUT_OFF = {.no_all_reduce = true};

static int run(size_t layer, uint32_t round,
	       const struct fsdp_reduce_options *options, expect_fn *expect)
{
	int r = trainer_reduce(layer, round, options, true);

	if (r == 0 && !trainer_sees_gradients(layer, expect))
		r = -EIO;
	return r;
}

static int reduce_all(void)
{
	int r = 0;

	for (size_t i = 0; r == 0 && i < N_KINDS; i++)
		r = run(i, 0, NULL, mean0);
	for (size_t i = N_KINDS; r == 0 && i-- > 0;)
		r = run(i, 1, NULL, mean1);
	return r;
}

static void check_means(uint32_t n, uint32_t n_shards)
{
	start(n, &(struct fsdp_comm_options){.n_shards = n_shards});
	cr_assert(eq(int, ranks_run(&ranks, reduce_all), 0));
	cr_assert(eq(u64, status_value(client, "reductions"), 2 * N_KINDS));
}

Test(reduce, one_rank_gets_its_own_gradients)
{
	check_means(1, 0);
}

Test(reduce, two_ranks_get_the_mean)
{
	check_means(2, 0);
}

Test(reduce, four_ranks_get_the_mean_in_uneven_and_empty_shards)
{
	check_means(4, 0);
}

Test(reduce, replicas_get_the_mean_over_all_ranks)
{
	check_means(4, 2);
}

Test(reduce, replicas_of_one_shard_get_the_mean_over_all_ranks)
{
	check_means(2, 1);
}

static void expect_no_gradient(size_t layer)
{
	struct fsdp_shard shard = {.struct_size = sizeof(shard)};

	must(fsdp_shard(trainer()->groups[layer], 0, &shard) == 0);
	must(!shard.grad);
}

/* The first reduction that accumulates finds no gradient to add to. */
static int accumulate(void)
{
	int r = 0;

	for (size_t i = 0; i < N_KINDS; i++)
		expect_no_gradient(i);
	for (size_t i = 0; r == 0 && i < N_KINDS; i++)
		r = run(i, 0, &ACCUMULATES, mean0);
	for (size_t i = 0; r == 0 && i < N_KINDS; i++)
		r = run(i, 1, &ACCUMULATES, mean01);
	for (size_t i = 0; r == 0 && i < N_KINDS; i++)
		r = run(i, 1, NULL, mean1);
	return r;
}

Test(reduce, gradients_accumulate_on_request)
{
	start(2, NULL);
	cr_assert(eq(int, ranks_run(&ranks, accumulate), 0));
}

/* Reductions that are put off leave their sums in each mesh. Meanwhile the
 * shards keep the gradients of the reduction before. */
static int put_off(void)
{
	int r = 0;

	for (size_t i = 0; r == 0 && i < N_KINDS; i++)
		r = run(i, 1, NULL, mean1);
	for (size_t i = 0; r == 0 && i < N_KINDS; i++)
		r = run(i, 0, &PUT_OFF, mean1);
	for (size_t i = 0; r == 0 && i < N_KINDS; i++)
		r = run(i, 1, NULL, mean01);
	for (size_t i = 0; r == 0 && i < N_KINDS; i++)
		r = run(i, 0, NULL, mean0);
	return r;
}

Test(reduce, sums_without_an_all_reduce_are_added_to_the_next_one)
{
	start(4, &(struct fsdp_comm_options){.n_shards = 2});
	cr_assert(eq(int, ranks_run(&ranks, put_off), 0));
}

static int put_off_alone(void)
{
	return run(0, 0, &PUT_OFF, mean0);
}

Test(reduce, without_replicas_the_all_reduce_cannot_be_omitted)
{
	start(2, NULL);
	cr_assert(eq(int, ranks_run(&ranks, put_off_alone), 0));
}

static int divide_by_2(void)
{
	struct fsdp_reduce_options options = {.has_factor = true, .factor = 2};
	int r = 0;

	for (size_t i = 0; r == 0 && i < N_KINDS; i++)
		r = run(i, 0, &options, half0);
	return r;
}

/* case 54: with a factor the total divisor is the factor, with replicas too */
Test(reduce, a_factor_divides_instead_of_the_world)
{
	start(4, &(struct fsdp_comm_options){.n_shards = 2});
	cr_assert(eq(int, ranks_run(&ranks, divide_by_2), 0));
}

/* --- microbatches without communication ---------------------------------- */

#define N_BATCHES 1000
#define GRADIENT  0x1.48p-7f /* 0.01 in bf16 */

static const struct layer BATCHES[] = {
	LAYER("batches", PLAIN,
	      .policy = {.param_dtype = FSDP_BF16,
			 .input_dtype = FSDP_F32,
			 .reduce_dtype = FSDP_F32}),
};

/* Returns the sum in f32 that FSDP2 has after N_BATCHES microbatches of bf16
 * gradients. */
static double sum_of_batches(size_t param, uint64_t index)
{
	float sum = 0;

	(void)param;
	(void)index;
	for (uint32_t i = 0; i < N_BATCHES; i++)
		sum += GRADIENT;
	return sum;
}

/* Add the gradient of each microbatch to the input. */
static void add_batches(float *input, uint64_t n, uint32_t n_batches)
{
	for (uint32_t i = 0; i < n_batches; i++) {
		for (uint64_t k = 0; k < n; k++)
			input[k] += GRADIENT;
	}
}

static void fill_with_batches(struct fsdp_group *group, size_t param,
			      uint64_t n)
{
	void *data = fsdp_input_data(group, param);
	float input[20] = {0};

	must(n <= 20);
	for (uint32_t i = 0; i < N_BATCHES; i += 100) {
		must(fsdp_group_put(group, data, input, n * sizeof(float)) ==
		     0);
		must(fsdp_group_get(group, input, data, n * sizeof(float)) ==
		     0);
		add_batches(input, n, 100);
	}
	must(fsdp_group_put(group, data, input, n * sizeof(float)) == 0);
}

static int reduce_batches(void)
{
	struct fsdp_group *group = trainer()->groups[0];
	struct fsdp_work work;
	int r = fsdp_input(group, -1);

	if (r == 0) {
		fill_with_batches(group, 0, 20);
		fill_with_batches(group, 1, 6);
		r = fsdp_reduce(group, NULL, &work);
	}
	if (r == 0)
		r = fsdp_wait(&work, -1);
	if (r == 0 && !trainer_sees_gradients(0, sum_of_batches))
		r = -EIO;
	return rank_note(r);
}

Test(reduce, microbatches_add_up_in_the_dtype_of_the_input)
{
	struct crew crew = {
		.layers = BATCHES,
		.n_layers = 1,
	};

	cr_assert(lt(dbl, fabs(sum_of_batches(0, 0) - 10.01), 0.001));
	crew_start(2, &crew);
	cr_assert(eq(int, ranks_run(&ranks, reduce_batches), 0), "%s",
		  sentence(0));
}

/* --- the same bits ------------------------------------------------------- */

#define N_BITS 64

static const struct fsdp_param_spec RANDOM[] = {
	{.name = "weight", .spec = {FSDP_F32, 2, {N_BITS, 8}}},
};
static const struct layer RANDOM_LAYERS[] = {
	LAYER("a", RANDOM),
	LAYER("b", RANDOM),
	LAYER("c", RANDOM),
};

static float (*shared_bits)[3][N_BITS * 8]; /* by run, by layer */
static uint32_t run_number;

/* Run backward over three layers. All inputs are handed in before the first
 * wait. */
static int backward(void)
{
	struct trainer *self = trainer();
	struct fsdp_work works[3];
	static float input[N_BITS * 8];
	struct fsdp_shard shard = {.struct_size = sizeof(shard)};

	for (size_t i = 0; i < 3; i++) {
		must(fsdp_input(self->groups[i], -1) == 0);
		srand48((long)(i * 100 + rank_self()));
		for (size_t k = 0; k < N_BITS * 8; k++)
			input[k] = (float)(drand48() - 0.5) * 1e3f;
		must(fsdp_group_put(self->groups[i],
				    fsdp_input_data(self->groups[i], 0), input,
				    sizeof(input)) == 0);
		must(fsdp_reduce(self->groups[i], NULL, &works[i]) == 0);
	}
	for (size_t i = 0; i < 3; i++) {
		must(fsdp_wait(&works[i], -1) == 0);
		must(fsdp_shard(self->groups[i], 0, &shard) == 0);
		must(fsdp_group_get(self->groups[i],
				    shared_bits[run_number][i] +
					    rank_self() * shard.numel,
				    shard.grad,
				    shard.numel * sizeof(float)) == 0);
	}
	return trainer_leave();
}

static void run_backward(uint32_t number, uint32_t n_inputs)
{
	struct crew crew = {
		.options = {.n_inputs = n_inputs},
		.layers = RANDOM_LAYERS,
		.n_layers = 3,
	};

	run_number = number;
	crew_start(4, &crew);
	cr_assert(eq(int, ranks_run(&ranks, backward), 0));
	ranks_stop(&ranks);
}

Test(reduce, more_inputs_at_a_time_give_the_same_bits)
{
	/* case 61 */
	shared_bits = shared_memory(2 * sizeof(*shared_bits));
	run_backward(0, 1);
	run_backward(1, 2);
	cr_assert(ne(flt, shared_bits[0][2][N_BITS * 8 - 1], 0));
	cr_assert(
		eq(int,
		   memcmp(shared_bits[0], shared_bits[1], sizeof(*shared_bits)),
		   0));
	cr_assert(zero(int, munmap(shared_bits, 2 * sizeof(*shared_bits))));
}

static int gather_and_reduce(void)
{
	int r = trainer_commit();

	for (size_t i = 0; r == 0 && i < N_KINDS; i++) {
		r = trainer_unshard(i);
		if (r == 0 && !trainer_sees_whole(i))
			r = -EIO;
		if (r == 0)
			r = trainer_reshard(i);
	}
	return r < 0 ? r : reduce_all();
}

/* Ranks on host memory then gather by themselves, and fsdp-worker reduces. */
Test(reduce, more_inputs_than_ranks_can_count_are_reduced_by_the_worker)
{
	start(2, &(struct fsdp_comm_options){.n_inputs = BOARD_MAX_AHEAD + 1});
	cr_assert(zero(int, ranks_run(&ranks, gather_and_reduce)));
	cr_assert(eq(u64, status_value(client, "reductions"), 2 * N_KINDS));
}

/* --- refusals ------------------------------------------------------------ */

static int try_factors(void)
{
	const double bad[] = {0, -1, NAN, INFINITY, -INFINITY, 1e300};
	struct fsdp_reduce_options options = {.has_factor = true};
	struct trainer *self = trainer();
	struct fsdp_work work;

	must(fsdp_input(self->groups[0], -1) == 0);
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		options.factor = bad[i];
		must(fsdp_reduce(self->groups[0], &options, &work) == -EINVAL);
		must(strstr(fsdp_error(), "factor"));
		/* The input still exists. */
		must(fsdp_input_data(self->groups[0], 0));
	}
	must(fsdp_reduce(self->groups[0], NULL, &work) == 0);
	must(work.sequence == 1);
	return rank_note(fsdp_wait(&work, -1));
}

Test(reduce, an_invalid_factor_is_refused)
{
	start(2, NULL);
	cr_assert(eq(int, ranks_run(&ranks, try_factors), 0));
}

static int submit(size_t layer, const struct fsdp_reduce_options *options)
{
	return trainer_reduce(layer, 0, options, false);
}

static int submit0(void)
{
	return submit(0, NULL);
}

/* Reduce the input that the rank already has. */
static int again(size_t layer, const struct fsdp_reduce_options *options)
{
	struct trainer *self = trainer();

	return rank_note(
		fsdp_reduce(self->groups[layer], options, &self->works[layer]));
}

static int submit1(void)
{
	return submit(1, NULL);
}

static int submit0_accumulating(void)
{
	return submit(0, &ACCUMULATES);
}

static int again0_with_factor(void)
{
	struct fsdp_reduce_options options = {.has_factor = true, .factor = 2};

	return again(0, &options);
}

static int again0(void)
{
	return again(0, NULL);
}

static int wait_again0(void)
{
	return rank_note(fsdp_wait(&trainer()->works[0], -1));
}

Test(reduce, a_reduction_in_another_order_is_refused_without_effect)
{
	start(2, &(struct fsdp_comm_options){.n_inputs = 2});
	cr_assert(eq(int, rank_run(&ranks, 0, submit0), 0));
	cr_assert(eq(int, rank_run(&ranks, 1, submit1), -EINVAL));
	assert_says(1, "reduces 'cast', but the ranks' next reduction is of "
		       "'plain'");
	cr_assert(eq(int, rank_run(&ranks, 1, submit0), 0));
}

Test(reduce, a_reduction_with_other_options_is_refused_without_effect)
{
	host_memory_only("on devices a rank's work begins in its own calls");
	start(2, NULL);
	cr_assert(eq(int, rank_run(&ranks, 0, submit0), 0));
	cr_assert(eq(int, rank_run(&ranks, 1, submit0_accumulating), -EINVAL));
	assert_says(1, "they differ in whether to accumulate");
	cr_assert(eq(int, rank_run(&ranks, 1, again0_with_factor), -EINVAL));
	assert_says(1, "they differ in the divide factor");
	cr_assert(eq(int, rank_run(&ranks, 1, again0), 0));
	cr_assert(eq(int, rank_run(&ranks, 1, wait_again0), 0));
}

static int take0(void)
{
	return rank_note(fsdp_input(trainer()->groups[0], 0));
}

static int take1(void)
{
	return rank_note(fsdp_input(trainer()->groups[1], 0));
}

static int take1_patiently(void)
{
	return rank_note(fsdp_input(trainer()->groups[1], -1));
}

Test(reduce, the_number_of_inputs_of_a_rank_is_limited)
{
	start(2, NULL);
	cr_assert(eq(int, rank_run(&ranks, 0, take0), 0));
	cr_assert(eq(int, rank_run(&ranks, 0, take0), -EBUSY));
	/* This rank itself has the input, so waiting would never end. */
	cr_assert(eq(int, rank_run(&ranks, 0, take1_patiently), -EBUSY));
	cr_assert(eq(int, rank_run(&ranks, 0, again0), 0));
	cr_assert(eq(int, rank_run(&ranks, 0, take1), -ETIMEDOUT));
	actor_begin(&ranks.actors[0], take1_patiently);
	cr_assert(eq(int, rank_run(&ranks, 1, submit0), 0));
	cr_assert(eq(int, actor_end(&ranks.actors[0]), 0));
}

static int look0(void)
{
	return rank_note(fsdp_wait(&trainer()->works[0], 0));
}

Test(reduce, a_reduction_waits_for_all_ranks)
{
	start(2, NULL);
	cr_assert(eq(int, rank_run(&ranks, 0, take0), 0));
	cr_assert(eq(int, rank_run(&ranks, 0, again0), 0));
	cr_assert(eq(int, rank_run(&ranks, 0, look0), -ETIMEDOUT));
	assert_says(0, "rank 1 (pid ");
	assert_says(0, "has not handed in its gradients");
	cr_assert(eq(int, rank_run(&ranks, 1, submit0), 0));
	cr_assert(eq(int, rank_run(&ranks, 0, wait_again0), 0));
	cr_assert(eq(int, rank_run(&ranks, 0, look0), 0));
}

static int begin_commit(void)
{
	struct trainer *self = trainer();
	struct fsdp_work work;

	return rank_note(fsdp_commit(self->comm, self->step + 1, &work));
}

Test(reduce, a_rank_with_a_pending_reduction_cannot_commit)
{
	start(2, NULL);
	cr_assert(eq(int, rank_run(&ranks, 0, take0), 0));
	cr_assert(eq(int, rank_run(&ranks, 0, again0), 0));
	cr_assert(eq(int, rank_run(&ranks, 0, begin_commit), -EBUSY));
	assert_says(0, "being reduced");
	cr_assert(eq(int, rank_run(&ranks, 1, begin_commit), -EINVAL));
	assert_says(1, "reduce 'plain'");
}

static const struct fsdp_param_spec FROZEN[] = {
	{.name = "weight", .spec = {FSDP_F32, 1, {8}}, .is_frozen = true},
};
static const struct layer FROZEN_LAYERS[] = {
	LAYER("frozen", FROZEN),
};

Test(reduce, a_frozen_group_has_no_gradients)
{
	struct crew crew = {
		.layers = FROZEN_LAYERS,
		.n_layers = 1,
	};

	crew_start(1, &crew);
	cr_assert(eq(int, rank_run(&ranks, 0, take0), -EINVAL));
	assert_says(0, "all of its parameters are frozen");
}

/* --- deaths -------------------------------------------------------------- */

Test(reduce, the_error_names_a_rank_that_is_killed_during_a_reduction)
{
	pid_t worker, victim;
	char text[64];

	host_memory_only("of the worker on devices test_executor has more");
	setenv("FSDP_TEST_EXECUTOR", "worker", 1);
	start(2, NULL);
	cr_assert(eq(int, ranks_run(&ranks, reduce_all), 0));
	worker = freeze_worker();
	cr_assert(eq(int, ranks_run(&ranks, take0), 0));
	cr_assert(eq(int, ranks_run(&ranks, again0), 0));
	cr_assert(status_await(client, "jobs_running", 1));
	cr_assert(eq(int, rank_run(&ranks, 0, look0), -ETIMEDOUT));
	assert_says(0, "is still being reduced");
	actor_begin(&ranks.actors[0], wait_again0);
	victim = ranks.actors[1].pid;
	actor_kill(&ranks.actors[1]);
	cr_assert(eq(int, actor_end(&ranks.actors[0]), -ECONNABORTED));
	snprintf(text, sizeof(text), "rank 1 (pid %d, ", (int)victim);
	assert_says(0, text);
	assert_says(0, "has died");
	must(kill(worker, SIGCONT) == 0);
	expect_memory_back();
}

Test(reduce, the_error_names_a_rank_that_is_killed_before_it_submits_its_input)
{
	start(2, NULL);
	cr_assert(eq(int, ranks_run(&ranks, take0), 0));
	cr_assert(eq(int, rank_run(&ranks, 0, again0), 0));
	actor_begin(&ranks.actors[0], wait_again0);
	actor_kill(&ranks.actors[1]);
	cr_assert(eq(int, actor_end(&ranks.actors[0]), -ECONNABORTED));
	assert_says(0, "has died");
	expect_memory_back();
}

Test(reduce, a_rank_that_waits_for_an_input_gets_an_error_after_a_death)
{
	start(2, NULL);
	cr_assert(eq(int, rank_run(&ranks, 0, take0), 0));
	cr_assert(eq(int, rank_run(&ranks, 0, again0), 0));
	actor_begin(&ranks.actors[0], take1_patiently);
	actor_kill(&ranks.actors[1]);
	cr_assert(eq(int, actor_end(&ranks.actors[0]), -ECONNABORTED));
	assert_says(0, "has died");
	expect_memory_back();
}

static const struct fsdp_param_spec LARGE[] = {
	{.name = "weight", .spec = {FSDP_F32, 2, {1024, 512}}},
};
static const struct layer LARGE_LAYERS[] = {
	LAYER("large", LARGE),
};

static int take0_patiently(void)
{
	return rank_note(fsdp_input(trainer()->groups[0], -1));
}

/* Start two ranks with memory for their group, but for no input. */
static struct fsdp_tensor *start_without_room(void)
{
	struct fsdp_spec spec = {FSDP_U8, 1, {9 << 20}};
	struct fsdp_tensor *hog;

	crew_use_little_memory(2);
	crew_start(2, &(struct crew){.layers = LARGE_LAYERS, .n_layers = 1});
	/* Let ranks that work alone get their board before memory is short. */
	cr_assert(eq(int, ranks_run(&ranks, trainer_commit), 0));
	must(fsdp_alloc(client, &spec, 1, NULL, 0, &hog) == 0);
	return hog;
}

Test(reduce, an_input_waits_for_memory)
{
	struct fsdp_tensor *hog = start_without_room();

	host_memory_only("a limit of host memory");
	cr_assert(eq(int, rank_run(&ranks, 0, take0), -ETIMEDOUT));
	actor_begin(&ranks.actors[0], take0_patiently);
	cr_assert(status_await(client, "waiters", 1));
	fsdp_free(hog);
	cr_assert(eq(int, actor_end(&ranks.actors[0]), 0));
}

static void *alloc_patiently(void *data)
{
	struct fsdp_spec spec = {FSDP_U8, 1, {9 << 20}};
	struct fsdp_tensor *tensor = NULL;
	int *code = data;

	*code = fsdp_alloc(client, &spec, 1, NULL, -1, &tensor);
	fsdp_free(tensor);
	return NULL;
}

/* Both ranks keep idle inputs, which use the memory that the thread waits
 * for. */
Test(reduce, inputs_that_ranks_keep_are_recalled)
{
	pthread_t thread;
	int code = 1;

	host_memory_only("a limit of host memory");
	fsdp_free(start_without_room());
	for (int i = 0; i < 2; i++) {
		cr_assert(eq(int, ranks_run(&ranks, take0_patiently), 0));
		cr_assert(eq(int, ranks_run(&ranks, again0), 0));
		cr_assert(eq(int, ranks_run(&ranks, wait_again0), 0));
	}
	must(pthread_create(&thread, NULL, alloc_patiently, &code) == 0);
	if (!getenv("FSDP_TEST_EXECUTOR"))
		cr_assert(status_await(client, "waiters", 1));
	cr_assert(eq(int, ranks_run(&ranks, trainer_commit), 0));
	must(pthread_join(thread, NULL) == 0);
	cr_expect(eq(int, code, 0));
	/* The ranks request the recalled inputs again. */
	cr_assert(eq(int, ranks_run(&ranks, take0_patiently), 0));
	cr_assert(eq(int, ranks_run(&ranks, again0), 0));
	cr_assert(eq(int, ranks_run(&ranks, wait_again0), 0));
}

Test(reduce, a_rank_that_waits_for_memory_gets_an_error_after_a_death)
{
	host_memory_only("a limit of host memory");
	(void)start_without_room();
	actor_begin(&ranks.actors[0], take0_patiently);
	cr_assert(status_await(client, "waiters", 1));
	actor_kill(&ranks.actors[1]);
	cr_assert(eq(int, actor_end(&ranks.actors[0]), -ECONNABORTED));
	assert_says(0, "has died");
}

Test(reduce, the_error_names_a_rank_that_does_not_submit_its_input)
{
	start(2, &(struct fsdp_comm_options){.timeout_ms = 5000});
	cr_assert(eq(int, ranks_run(&ranks, take0), 0));
	cr_assert(eq(int, rank_run(&ranks, 0, again0), 0));
	cr_assert(eq(int, rank_run(&ranks, 0, wait_again0), -ECONNABORTED));
	assert_says(0, "rank 1 (pid ");
	assert_says(0, "has not handed in gradients of 'plain' within 5000 ms");
	expect_memory_back();
}

Test(reduce, a_worker_that_is_killed_fails_only_the_run)
{
	uint64_t starts;
	pid_t worker;

	host_memory_only("of the worker on devices test_executor has more");
	setenv("FSDP_TEST_EXECUTOR", "worker", 1);
	start(2, NULL);
	cr_assert(eq(int, ranks_run(&ranks, trainer_commit), 0));
	cr_assert(eq(int, ranks_run(&ranks, reduce_all), 0));
	starts = status_value(client, "worker_starts");
	worker = freeze_worker();
	cr_assert(eq(int, ranks_run(&ranks, take0), 0));
	cr_assert(eq(int, ranks_run(&ranks, again0), 0));
	cr_assert(status_await(client, "jobs_running", 1));
	ranks_begin(&ranks, wait_again0);
	must(kill(worker, SIGKILL) == 0);
	ranks_end(&ranks);
	cr_assert(eq(int, ranks.notes[0].code, -ECONNABORTED));
	cr_assert(eq(int, ranks.notes[1].code, -ECONNABORTED));
	assert_says(0, "while group 'plain' of communicator 'test' was "
		       "reduced");
	assert_says(1, "fsdp-worker");
	cr_assert(eq(int, ranks_run(&ranks, trainer_leave), 0));

	/* The next run finds the committed step, and a new worker. */
	cr_assert(eq(int, ranks_run(&ranks, trainer_join), 0));
	cr_assert(eq(int, ranks_run(&ranks, reduce_all), 0));
	cr_assert(eq(u64, status_value(client, "worker_starts"), starts + 1));
	expect_memory_back();
}
