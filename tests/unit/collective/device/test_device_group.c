/*
 * Tests a group's gathers and reductions on devices. Every element is compared
 * with the rule of sharding. Values are small integers, so that every dtype of
 * the tests can hold their sums.
 */
#include "collective/device/device_group.h"
#include "collective/wire.h"
#include "tests/lib/scalar.h"
#include "tests/unit/cuda/nccl_fixture.h"

#define PADDING UINT64_MAX

/* The test passes its ranks this task. */
static struct {
	enum plan_layout layout;
	uint32_t param_dtype, input_dtype;
	uint32_t flags; /* for the next reduction */
	uint32_t round; /* from which gradients are made */
	uint32_t first; /* round whose gradients are expected in the sum */
} * task;

static void open(void)
{
	mesh_open();
	task = shared_memory(sizeof(*task));
}

TestSuite(device_group, .init = open, .fini = mesh_close, .timeout = 300);

/* Some are divided evenly and some not, by the first dimension and by later
 * ones. One has no gradient, and integers are not cast. */
static const struct plan_param params[] = {
	{"weight", {DTYPE_F32, 2, {5, 3}, {3, 1}}, 0, false},
	{"wide", {DTYPE_F32, 2, {2, 12}, {12, 1}}, 1, false},
	{"base", {DTYPE_F32, 1, {4}, {1}}, 0, true},
	{"count", {DTYPE_I32, 1, {9}, {1}}, 0, false},
	{"bias", {DTYPE_F32, 1, {1}, {1}}, 0, false},
};
#define N_PARAMS (sizeof(params) / sizeof(*params))

static double value_of(uint32_t param, uint64_t index)
{
	return (double)((index * 7 + param * 13) % 61) - 30;
}

static double gradient_of(uint32_t rank, uint32_t param, uint64_t index,
			  uint32_t round)
{
	return (double)((index * 3 + param + rank * 5 + round * 11) % 17) - 8;
}

/* --- in a rank ----------------------------------------------------------- */

static struct {
	struct plan plan;
	struct device_group *group;
	CUdeviceptr shards, full, input, grads, partial;
	uint8_t host[8192]; /* copy of any of these memories */
} own;

static uint32_t shard_self(void)
{
	return rank_self() % mesh->n_shards;
}

static uint64_t part(uint64_t size)
{
	return size / mesh->n_shards;
}

/* Returns the index in the whole parameter of element `i` of this rank's chunk,
 * or PADDING. */
static uint64_t whole_index(const struct shard *shard, uint64_t i)
{
	uint64_t width = (uint64_t)shard->chunk * shard->row_numel;
	uint64_t column = shard_self() * width + i % width;
	uint64_t row_size = (uint64_t)shard->size * shard->row_numel;

	return column < row_size ? i / width * row_size + column : PADDING;
}

static void put_number(uint32_t dtype, uint64_t offset, uint64_t i, double x)
{
	enum fsdp_dtype it = (enum fsdp_dtype)dtype;
	uint64_t bits = scalar_is_float(it) ? scalar_encode(it, x)
					    : (uint64_t)(int64_t)x;

	scalar_store(it, own.host + offset, i, bits);
}

static double number_at(uint32_t dtype, uint64_t offset, uint64_t i)
{
	enum fsdp_dtype it = (enum fsdp_dtype)dtype;
	uint64_t bits = scalar_load(it, own.host + offset, i);

	return scalar_is_float(it) ? scalar_decode(it, bits)
				   : (double)(int64_t)scalar_widen(it, bits);
}

static void fill_shards(void)
{
	memset(own.host, 0, sizeof(own.host));
	for (uint32_t p = 0; p < N_PARAMS; p++) {
		const struct plan_entry *entry = &own.plan.entries[p];

		for (uint64_t i = 0; i < entry->shard.chunk_numel; i++) {
			uint64_t at = whole_index(&entry->shard, i);

			put_number(entry->dtype, entry->shard_offset, i,
				   at == PADDING ? 0 : value_of(p, at));
		}
	}
	rank_put(own.shards, own.host, part(own.plan.shards_size));
}

static int make_group(void)
{
	const struct plan_policy policy = {
		.layout = task->layout,
		.param_dtype = task->param_dtype,
		.input_dtype = task->input_dtype,
		.is_per_rank = true,
	};
	struct error err = ERROR_NULL;
	int r = plan_make(params, N_PARAMS, &policy, mesh->n_shards,
			  mesh->n_replicas, &own.plan, &err);

	if (r == 0)
		r = device_group_new(&own.plan, self.device, rank_self(),
				     &own.group, &err);
	if (r < 0)
		return rank_say(r, err.msg);
	own.shards = rank_allocate(part(own.plan.shards_size));
	own.full = rank_allocate(own.plan.full_size +
				 wire_gather_tail(&own.plan).size);
	own.input = rank_allocate(own.plan.input_size +
				  wire_reduce_tail(&own.plan));
	own.grads = rank_allocate(part(own.plan.grads_size));
	own.partial = rank_allocate(part(own.plan.partial_size) + 1);
	must(own.plan.full_size <= sizeof(own.host) &&
	     own.plan.input_size <= sizeof(own.host));
	fill_shards();
	return 0;
}

static int free_group(void)
{
	device_group_free(own.group);
	plan_deinit(&own.plan);
	return 0;
}

/* Note the first wrong value and its place; `seen` is the value. */
static int say_wrong(uint32_t param, uint64_t i, double seen, double expected)
{
	char text[128];

	(void)snprintf(text, sizeof(text), "\"%s\" [%lu] is %g, not %g",
		       params[param].name, i, seen, expected);
	return rank_say(-EILSEQ, text);
}

static int gather(void)
{
	struct error err = ERROR_NULL;
	int r = device_group_gather(own.group, self.comm, own.shards, own.full,
				    self.stream, &err);

	return r < 0 ? rank_say(r, err.msg) : rank_wait_stream();
}

static int see_whole(void)
{
	rank_get(own.host, own.full, own.plan.full_size);
	for (uint32_t p = 0; p < N_PARAMS; p++) {
		const struct plan_entry *entry = &own.plan.entries[p];

		for (uint64_t i = 0; i < entry->shard.numel; i++) {
			double seen = number_at(entry->full_dtype,
						entry->full_offset, i);

			if (seen != value_of(p, i))
				return say_wrong(p, i, seen, value_of(p, i));
		}
	}
	return 0;
}

static void fill_input(void)
{
	for (uint32_t p = 0; p < N_PARAMS; p++) {
		const struct plan_entry *entry = &own.plan.entries[p];

		for (uint64_t i = 0;
		     entry->reduce_dtype && i < entry->shard.numel; i++)
			put_number(entry->input_dtype, entry->input_offset, i,
				   gradient_of(rank_self(), p, i, task->round));
	}
	rank_put(own.input, own.host, own.plan.input_size);
}

static int reduce(void)
{
	const struct device_reduce reduce = {
		.flags = task->flags,
		.has_factor = true,
		.factor = 1,
		.input = own.input,
		.grads = own.grads,
		.partial = own.partial,
	};
	struct error err = ERROR_NULL;
	int r;

	fill_input();
	r = device_group_reduce(own.group, self.comm, &reduce, self.stream,
				&err);
	return r < 0 ? rank_say(r, err.msg) : rank_wait_stream();
}

static double sum_of(uint32_t param, uint64_t i)
{
	double sum = 0;

	for (uint32_t round = task->first; round <= task->round; round++) {
		for (uint32_t rank = 0; rank < rank_world(); rank++)
			sum += gradient_of(rank, param, i, round);
	}
	return sum;
}

/* Returns the sum of all rounds from the first that is expected. */
static int see_gradients(void)
{
	rank_get(own.host, own.grads, part(own.plan.grads_size));
	for (uint32_t p = 0; p < N_PARAMS; p++) {
		const struct plan_entry *entry = &own.plan.entries[p];
		uint64_t n = entry->reduce_dtype ? entry->shard.chunk_numel : 0;

		for (uint64_t i = 0; i < n; i++) {
			uint64_t at = whole_index(&entry->shard, i);
			double seen =
				number_at(entry->dtype, entry->grad_offset, i);

			if (at != PADDING && seen != sum_of(p, at))
				return say_wrong(p, at, seen, sum_of(p, at));
		}
	}
	return 0;
}

/* --- tests --------------------------------------------------------------- */

static void all(int (*fn)(void))
{
	int r = ranks_run(&ranks, fn);

	cr_assert(zero(int, r), "%s", ranks.notes[0].sentence);
}

static void begin(uint32_t n_shards, uint32_t n_replicas)
{
	mesh_join(n_shards, n_replicas);
	all(make_group);
}

static void end(void)
{
	all(free_group);
	all(rank_close);
	ranks_stop(&ranks);
}

/* Gradients depend on their round. */
static void reduce_round(uint32_t round, uint32_t flags)
{
	task->round = round;
	task->flags = flags;
	all(reduce);
}

static void expect_gathers(uint32_t n_shards, uint32_t n_replicas)
{
	for (uint32_t i = 0; i < 4; i++) {
		task->layout = i % 2 ? PLAN_FLAT : PLAN_IN_PLACE;
		task->param_dtype = i / 2 ? DTYPE_BF16 : 0;
		begin(n_shards, n_replicas);
		all(gather);
		all(see_whole);
		end();
	}
}

Test(device_group,
     parameters_are_gathered_in_both_layouts_with_and_without_a_cast)
{
	expect_gathers(2, 1);
}

Test(device_group, ranks_with_smaller_or_empty_shards_gather_correctly)
{
	expect_gathers(4, 1);
}

Test(device_group, one_rank_that_has_all_parameters_gathers_correctly)
{
	expect_gathers(1, 1);
}

static void expect_reductions(uint32_t n_shards, uint32_t n_replicas)
{
	for (uint32_t i = 0; i < 8; i++) {
		task->layout = i % 2 ? PLAN_FLAT : PLAN_IN_PLACE;
		task->param_dtype = i / 2 % 2 ? DTYPE_BF16 : 0;
		task->input_dtype = i / 4 ? DTYPE_F64 : 0;
		begin(n_shards, n_replicas);
		task->first = 1;
		reduce_round(1, 0);
		all(see_gradients);
		end();
	}
}

Test(device_group,
     gradients_are_reduced_in_both_layouts_with_and_without_a_cast)
{
	expect_reductions(3, 1);
}

Test(device_group, gradients_of_replicas_are_reduced)
{
	expect_reductions(2, 2);
}

Test(device_group, gradients_replace_or_accumulate_earlier_ones)
{
	begin(2, 1);
	reduce_round(1, 0);
	task->first = 2;
	reduce_round(2, 0);
	all(see_gradients);
	reduce_round(3, DEVICE_REDUCE_ACCUMULATE);
	all(see_gradients);
	end();
}

Test(device_group, partial_sums_are_included_in_a_later_all_reduce)
{
	begin(2, 2);
	task->first = 1;
	reduce_round(1, 0);
	reduce_round(2, DEVICE_REDUCE_PARTIAL_OUT);
	task->round = 1;
	all(see_gradients); /* as they were */
	reduce_round(3, DEVICE_REDUCE_PARTIAL_IN | DEVICE_REDUCE_PARTIAL_OUT);
	task->first = 2;
	reduce_round(4, DEVICE_REDUCE_PARTIAL_IN);
	all(see_gradients);
	end();
}
