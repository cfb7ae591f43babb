/* Tests that reductions match reduce.h bit for bit, and are close to the
 * mean. */
#include "collective/divide.h"
#include "collective/host/reduce.h"
#include "tests/lib/check.h"
#include "tests/unit/collective/host/host_fixture.h"

static const uint32_t floats[] = {DTYPE_F16, DTYPE_BF16, DTYPE_F32, DTYPE_F64};
static const uint32_t integers[] = {DTYPE_I8, DTYPE_I16, DTYPE_I32, DTYPE_I64,
				    DTYPE_U8, DTYPE_U16, DTYPE_U32, DTYPE_U64};

struct memory {
	uint8_t *inputs[PLAN_MAX_RANKS];
	uint8_t *grads, *partial;
	uint8_t *want_grads, *want_partial;
	uint64_t grads_size, partial_size;
};

/* --- one element, by reduce.h -------------------------------------------- */

/* Add the numbers and divide the sum, in the accumulator of the dtype. */
static union number add(uint32_t dtype, const union number *x, uint32_t n,
			double factor, double divisor)
{
	union number sum = x[0];
	float single;

	if (is_float(dtype) && dtype != DTYPE_F64) {
		single = (float)x[0].f * (float)factor;
		for (uint32_t i = 1; i < n; i++)
			single += (float)x[i].f * (float)factor;
		sum.f = (double)(single / (float)divisor);
	} else if (is_float(dtype)) {
		sum.f *= factor;
		for (uint32_t i = 1; i < n; i++)
			sum.f += x[i].f * factor;
		sum.f /= divisor;
	} else {
		for (uint32_t i = 1; i < n; i++)
			sum.i += x[i].i;
		if (is_signed(dtype))
			sum.i = (uint64_t)((int64_t)sum.i / (int64_t)divisor);
		else
			sum.i /= (uint64_t)divisor;
	}
	return sum;
}

static union number round_to(uint32_t dtype, union number x)
{
	if (is_float(dtype))
		x.f = round_float(dtype, x.f);
	return x;
}

struct step {
	const struct plan_entry *entry;
	const struct plan *plan;
	const struct reduce_options *options;
	struct divide divide;
	uint64_t i;    /* element of the parameter */
	uint32_t rank; /* rank that has it in its shard */
	uint64_t at;   /* element there */
};

static union number replica_sum(const struct step *step,
				const struct memory *memory, uint32_t g)
{
	const struct plan_entry *entry = step->entry;
	uint32_t reduce = entry->reduce_dtype, from = entry->input_dtype;
	uint32_t n = step->plan->n_shards;
	union number x[PLAN_MAX_RANKS], sum;
	double avg = step->divide.scatter_op == REDUCE_OP_AVG ? n : 1;

	for (uint32_t s = 0; s < n; s++) {
		const uint8_t *input = memory->inputs[g * n + s];

		x[s] = round_to(
			reduce,
			number_load(from, input + entry->input_offset +
						  step->i * dtype_size(from)));
	}
	/* One of the two is 1, and the reciprocal of `pre` is exact. */
	sum = round_to(
		reduce,
		add(reduce, x, n, step->divide.premul / step->divide.pre, avg));
	if (step->options->flags & HOST_REDUCE_PARTIAL_IN) {
		const uint8_t *partial = memory->want_partial +
					 g * step->plan->partial_size +
					 entry->partial_offset +
					 step->rank * entry->partial_stride;

		x[0] = sum;
		x[1] = number_load(reduce,
				   partial + step->at * dtype_size(reduce));
		sum = round_to(reduce, add(reduce, x, 2, 1, 1));
	}
	return sum;
}

static void want_element(const struct step *step, struct memory *memory)
{
	const struct plan_entry *entry = step->entry;
	uint32_t reduce = entry->reduce_dtype, n = step->plan->n_replicas;
	union number sums[PLAN_MAX_RANKS], total;

	for (uint32_t g = 0; g < n; g++) {
		uint8_t *partial = memory->want_partial +
				   g * step->plan->partial_size +
				   entry->partial_offset +
				   step->rank * entry->partial_stride;

		sums[g] = replica_sum(step, memory, g);
		if (step->options->flags & HOST_REDUCE_PARTIAL_OUT)
			number_store(reduce,
				     partial + step->at * dtype_size(reduce),
				     sums[g]);
	}
	if (step->options->flags & HOST_REDUCE_PARTIAL_OUT)
		return;
	total = sums[0];
	if (n > 1)
		total = round_to(
			reduce,
			add(reduce, sums, n, 1,
			    step->divide.reduce_op == REDUCE_OP_AVG ? n : 1));
	total = round_to(entry->dtype,
			 add(reduce, &total, 1, 1, step->divide.post));
	for (uint32_t g = 0; g < n; g++) {
		uint8_t *grad =
			memory->want_grads + g * step->plan->grads_size +
			entry->grad_offset + step->rank * entry->grad_stride +
			step->at * dtype_size(entry->dtype);
		union number x[2] = {number_load(entry->dtype, grad), total};

		if (step->options->flags & HOST_REDUCE_ACCUMULATE)
			x[1] = round_to(entry->dtype,
					add(entry->dtype, x, 2, 1, 1));
		number_store(entry->dtype, grad, x[1]);
	}
}

static void want_group(const struct group *group,
		       const struct reduce_options *options,
		       struct memory *memory)
{
	for (uint32_t e = 0; e < group->plan.n_entries; e++) {
		const struct plan_entry *entry = &group->plan.entries[e];
		const struct divide_input input = {
			.n_shards = group->plan.n_shards,
			.n_replicas = group->plan.n_replicas,
			.dtype = entry->reduce_dtype,
			.has_factor = options->has_factor,
			.factor = options->factor,
			.is_sum_forced = options->is_sum_forced,
		};
		struct step step = {
			.entry = entry,
			.plan = &group->plan,
			.options = options,
		};

		if (!entry->reduce_dtype)
			continue;
		cr_assert(zero(int, divide_make(&input, &step.divide, NULL)));
		for (; step.i < entry->shard.numel; step.i++) {
			step.at = group_find(&entry->shard, step.i, &step.rank);
			want_element(&step, memory);
		}
	}
}

/* --- memory -------------------------------------------------------------- */

/* Before a reduction, all bytes around the numbers are zero. */
static void fill_chunks(struct dice *dice, const struct plan *plan, uint8_t *to,
			bool is_partial)
{
	uint64_t size = is_partial ? plan->partial_size : plan->grads_size;

	memset(to, 0, size * plan->n_replicas);
	for (uint32_t e = 0; e < plan->n_entries; e++) {
		const struct plan_entry *entry = &plan->entries[e];
		uint32_t dtype =
			is_partial ? entry->reduce_dtype : entry->dtype;
		uint64_t offset =
			is_partial ? entry->partial_offset : entry->grad_offset;
		uint64_t stride =
			is_partial ? entry->partial_stride : entry->grad_stride;

		for (uint64_t i = 0; entry->reduce_dtype &&
				     i < entry->shard.numel * plan->n_replicas;
		     i++) {
			uint64_t g = i / entry->shard.numel;
			uint32_t rank;
			uint64_t at = group_find(&entry->shard,
						 i % entry->shard.numel, &rank);

			memory_fill(dice, dtype,
				    to + g * size + offset + rank * stride +
					    at * dtype_size(dtype),
				    1);
		}
	}
}

static void memory_make(struct dice *dice, const struct plan *plan,
			struct memory *memory)
{
	memory->grads_size = plan->grads_size * plan->n_replicas;
	memory->partial_size = plan->partial_size * plan->n_replicas;
	for (uint32_t i = 0; i < plan->n_shards * plan->n_replicas; i++) {
		memory->inputs[i] = memory_new(plan->input_size);
		for (uint32_t e = 0; e < plan->n_entries; e++) {
			const struct plan_entry *entry = &plan->entries[e];

			if (entry->reduce_dtype)
				memory_fill(dice, entry->input_dtype,
					    memory->inputs[i] +
						    entry->input_offset,
					    entry->shard.numel);
		}
	}
	memory->grads = memory_new(memory->grads_size);
	memory->want_grads = memory_new(memory->grads_size);
	memory->partial = memory_new(memory->partial_size);
	memory->want_partial = memory_new(memory->partial_size);
	fill_chunks(dice, plan, memory->want_grads, false);
	if (memory->partial_size)
		fill_chunks(dice, plan, memory->want_partial, true);
	memcpy(memory->grads, memory->want_grads, memory->grads_size);
	memcpy(memory->partial, memory->want_partial, memory->partial_size);
}

static bool memory_drop(const struct plan *plan, struct memory *memory)
{
	bool is_whole = memory_free(memory->grads, memory->grads_size);

	for (uint32_t i = 0; i < plan->n_shards * plan->n_replicas; i++)
		is_whole &= memory_free(memory->inputs[i], plan->input_size);
	is_whole &= memory_free(memory->want_grads, memory->grads_size);
	is_whole &= memory_free(memory->partial, memory->partial_size);
	return memory_free(memory->want_partial, memory->partial_size) &&
	       is_whole;
}

static void run_all(const struct group *group, const struct kernels *kernels,
		    const struct reduce_options *options,
		    const struct memory *memory)
{
	struct error err = ERROR_NULL;
	struct reduce reduce;
	int r = reduce_init(&reduce, group->layout, kernels, options, &err);

	cr_assert(eq(int, r, 0), "%s", err.msg);
	memcpy(reduce.inputs, memory->inputs, sizeof(reduce.inputs));
	reduce.grads = memory->grads;
	reduce.partial = memory->partial;
	for (uint64_t i = reduce_count_tasks(&reduce); i-- > 0;)
		reduce_run(&reduce, i);
}

/* --- the same bits ------------------------------------------------------- */

/* Run the reduction on every level. Each time the memory holds no part of the
 * right result at first. */
static void check_options(const struct group *group,
			  const struct reduce_options *options,
			  struct memory *memory)
{
	uint8_t *grads = memory_new(memory->grads_size);
	uint8_t *partial = memory_new(memory->partial_size);

	memcpy(grads, memory->grads, memory->grads_size);
	memcpy(partial, memory->partial, memory->partial_size);
	want_group(group, options, memory);
	for (int level = 0; level < N_KERNEL_LEVELS; level++) {
		if (!kernels_get(level))
			continue;
		memcpy(memory->grads, grads, memory->grads_size);
		memcpy(memory->partial, partial, memory->partial_size);
		if (!(options->flags &
		      (HOST_REDUCE_ACCUMULATE | HOST_REDUCE_PARTIAL_OUT)))
			memset(memory->grads, CANARY, memory->grads_size);
		run_all(group, kernels_get(level), options, memory);
		cr_assert(eq(int,
			     memcmp(memory->grads, memory->want_grads,
				    memory->grads_size),
			     0),
			  "%s", kernels_get(level)->name);
		cr_assert(eq(int,
			     memcmp(memory->partial, memory->want_partial,
				    memory->partial_size),
			     0),
			  "%s", kernels_get(level)->name);
	}
	cr_assert(memory_free(grads, memory->grads_size));
	cr_assert(memory_free(partial, memory->partial_size));
}

static struct reduce_options throw_options(struct dice *dice,
					   uint32_t n_replicas, bool is_integer)
{
	const double factors[] = {1, 2, 4, 6, 8, 12, 7, 2.5, 0.3};
	struct reduce_options options = {0};

	options.is_sum_forced = dice_throw(dice, 3) == 0;
	options.has_factor = dice_throw(dice, 2);
	options.factor = factors[dice_throw(dice, is_integer ? 7 : 9)];
	if (dice_throw(dice, 2))
		options.flags |= HOST_REDUCE_ACCUMULATE;
	if (n_replicas > 1 && dice_throw(dice, 2))
		options.flags |= HOST_REDUCE_PARTIAL_IN;
	if (n_replicas > 1 && dice_throw(dice, 3) == 0)
		options.flags |= HOST_REDUCE_PARTIAL_OUT;
	return options;
}

static void throw_and_check(struct dice *dice, const uint32_t *dtypes,
			    uint32_t n_dtypes)
{
	uint32_t n_shards = 1 + dice_throw(dice, 5);
	uint32_t n_replicas = 1 + dice_throw(dice, 3);
	bool is_integer = !is_float(dtypes[0]);
	struct plan_policy policy = {0};
	struct memory memory;
	struct group group;
	struct reduce_options options =
		throw_options(dice, n_replicas, is_integer);

	if (dice_throw(dice, 2))
		policy.param_dtype = floats[dice_throw(dice, 4)];
	if (dice_throw(dice, 2))
		policy.input_dtype = floats[dice_throw(dice, 4)];
	if (dice_throw(dice, 2))
		policy.reduce_dtype = floats[dice_throw(dice, 4)];
	group_throw(dice, n_shards, n_replicas, dtypes, n_dtypes, policy,
		    &group);
	memory_make(dice, &group.plan, &memory);
	check_options(&group, &options, &memory);
	cr_assert(memory_drop(&group.plan, &memory));
	group_deinit(&group);
}

Test(reduce, floats_have_the_bits_of_the_documented_order)
{
	struct dice dice = {1};

	for (int i = 0; i < 400; i++)
		throw_and_check(&dice, floats, 4);
}

Test(reduce, integers_have_the_bits_of_the_documented_order)
{
	struct dice dice = {2};

	for (int i = 0; i < 100; i++)
		throw_and_check(&dice, integers, 8);
}

/* Make a group of one parameter with this many elements, for this many
 * ranks. */
static void make_group(struct group *group, uint32_t dtype, int64_t numel,
		       const struct plan_policy *policy, uint32_t n_shards,
		       uint32_t n_replicas)
{
	struct error err = ERROR_NULL;

	*group = (struct group){.n_params = 1};
	group->params[0].name = "w";
	group->params[0].type = (struct tensor_type){dtype, 1, {numel}, {0}};
	tensor_type_contiguous(&group->params[0].type);
	cr_assert(eq(int,
		     plan_make(group->params, 1, policy, n_shards, n_replicas,
			       &group->plan, &err),
		     0),
		  "%s", err.msg);
	group_make_layout(group);
}

Test(reduce, large_parameters_are_split_into_tasks)
{
	const struct {
		uint32_t dtype, reduce_dtype, n_shards, n_replicas;
		int64_t numel;
		uint32_t flags;
	} cases[] = {
		{DTYPE_F32, 0, 3, 1, 100003, 0},
		{DTYPE_F64, DTYPE_F32, 3, 1, 5001, 0},
		{DTYPE_F32, 0, 3, 1, 2200001, 0}, /* streamed */
		{DTYPE_BF16, DTYPE_F32, 2, 2, 150001, HOST_REDUCE_ACCUMULATE},
		{DTYPE_F32, 0, 32, 2, 20011, 0},
		{DTYPE_F64, 0, 1, 64, 5003, 0},
	};
	struct dice dice = {3};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const struct plan_policy policy = {
			.layout = i % 2,
			.reduce_dtype = cases[i].reduce_dtype,
		};
		const struct reduce_options options = {.flags = cases[i].flags};
		struct memory memory;
		struct group group;

		make_group(&group, cases[i].dtype, cases[i].numel, &policy,
			   cases[i].n_shards, cases[i].n_replicas);
		memory_make(&dice, &group.plan, &memory);
		check_options(&group, &options, &memory);
		cr_assert(memory_drop(&group.plan, &memory));
		group_deinit(&group);
	}
}

/* --- the mean ------------------------------------------------------------ */

static double epsilon_of(uint32_t dtype)
{
	switch (dtype) {
	case DTYPE_F16:
		return 0x1p-11;
	case DTYPE_BF16:
		return 0x1p-8;
	case DTYPE_F32:
		return 0x1p-24;
	default:
		return 0x1p-53;
	}
}

/* Returns how far the first gradient of each element is from the sum in f64, in
 * units of the possible rounding errors. */
static double worst_of(const struct group *group, const struct memory *memory,
		       double divisor)
{
	const struct plan_entry *entry = &group->plan.entries[0];
	uint32_t n = group->plan.n_shards * group->plan.n_replicas;
	uint32_t from = entry->input_dtype, rank;
	/* Returns the unit of the coarser dtype, for a sum of n numbers and
	 * divisions. */
	double epsilon = fmax(epsilon_of(entry->reduce_dtype),
			      epsilon_of(entry->dtype)),
	       worst = 0;

	for (uint64_t i = 0; i < entry->shard.numel; i++) {
		double sum = 0, size = 0, got, tiny = 0x1p-24;
		uint64_t at = group_find(&entry->shard, i, &rank);

		for (uint32_t k = 0; k < n; k++) {
			double x =
				number_load(from, memory->inputs[k] +
							  i * dtype_size(from))
					.f;

			sum += x / divisor;
			size += fabs(x) / divisor;
		}
		got = number_load(entry->dtype,
				  memory->grads + entry->grad_offset +
					  rank * entry->grad_stride +
					  at * dtype_size(entry->dtype))
			      .f;
		worst = fmax(worst, fabs(got - sum) /
					    (epsilon * (n + 6) * size + tiny));
	}
	return worst;
}

/* 8.2.7: test every dtype, S, R, factor and force_sum. */
Test(reduce, the_result_is_the_mean_or_the_sum_by_the_factor)
{
	const double factors[] = {0, 1, 2, 3, 6, 8, 16, 2.5};
	struct dice dice = {4};

	for (uint32_t i = 0; i < 4 * 4 * 3 * 8 * 2; i++) {
		uint32_t dtype = floats[i % 4], n_shards = 1 + i / 4 % 4;
		uint32_t n_replicas = 1 + i / 16 % 3;
		double factor = factors[i / 48 % 8];
		const struct plan_policy policy = {
			.reduce_dtype = floats[dice_throw(&dice, 4)],
		};
		const struct reduce_options options = {
			.has_factor = factor != 0,
			.factor = factor,
			.is_sum_forced = i >= 4 * 4 * 3 * 8,
		};
		struct memory memory;
		struct group group;

		make_group(&group, dtype, 37, &policy, n_shards, n_replicas);
		memory_make(&dice, &group.plan, &memory);
		run_all(&group, kernels_best(), &options, &memory);
		cr_assert(lt(dbl,
			     worst_of(&group, &memory,
				      factor != 0 ? factor
						  : n_shards * n_replicas),
			     1),
			  "%s in %s, S %u, R %u, factor %g", dtype_name(dtype),
			  dtype_name(policy.reduce_dtype), n_shards, n_replicas,
			  factor);
		cr_assert(memory_drop(&group.plan, &memory));
		group_deinit(&group);
	}
}

/* Reduce three microbatches, of which only the last is reduced over the
 * replicas. */
Test(reduce, partial_sums_over_microbatches_add_up)
{
	const uint32_t flags[] = {HOST_REDUCE_PARTIAL_OUT,
				  HOST_REDUCE_PARTIAL_IN |
					  HOST_REDUCE_PARTIAL_OUT,
				  HOST_REDUCE_PARTIAL_IN};
	const struct plan_policy policy = {0};
	struct dice dice = {5};
	struct memory memory;
	struct group group;

	make_group(&group, DTYPE_F32, 5, &policy, 2, 2);
	memory_make(&dice, &group.plan, &memory);
	for (int i = 0; i < 4; i++) {
		const float ones[] = {1, 2, 3, 4, 5};

		memcpy(memory.inputs[i], ones, sizeof(ones));
	}
	for (int i = 0; i < 3; i++) {
		const struct reduce_options options = {.flags = flags[i]};

		run_all(&group, kernels_best(), &options, &memory);
	}
	for (int i = 0; i < 2; i++) {
		const float *grads = (const float *)(memory.grads +
						     i * group.plan.grads_size);

		/* The two shards have 3 elements each. The last element is
		 * padding. */
		for (int j = 0; j < 6; j++)
			cr_assert(
				eq(flt, grads[j], j < 5 ? 3.0f * (j + 1) : 0));
	}
	cr_assert(memory_drop(&group.plan, &memory));
	group_deinit(&group);
}

/* The sums in between reach 80,000, which is more than f16 can hold. */
Test(reduce, the_accumulator_has_more_range_than_the_dtype)
{
	const struct plan_policy policy = {0};
	const struct reduce_options options = {0};
	struct dice dice = {6};
	struct memory memory;
	struct group group;

	make_group(&group, DTYPE_F16, 2, &policy, 2, 1);
	memory_make(&dice, &group.plan, &memory);
	for (int i = 0; i < 2; i++)
		number_store(DTYPE_F16, memory.inputs[i],
			     (union number){.f = 40000});
	run_all(&group, kernels_best(), &options, &memory);
	cr_assert(eq(dbl, number_load(DTYPE_F16, memory.grads).f, 40000));
	cr_assert(memory_drop(&group.plan, &memory));
	group_deinit(&group);
}

Test(reduce, integers_are_divided_before_they_are_truncated)
{
	const struct plan_policy policy = {0};
	const struct reduce_options options = {0};
	struct dice dice = {7};
	struct memory memory;
	struct group group;

	make_group(&group, DTYPE_I8, 2, &policy, 2, 2);
	memory_make(&dice, &group.plan, &memory);
	for (int i = 0; i < 4; i++) {
		memory.inputs[i][0] = 101;
		memory.inputs[i][1] = (uint8_t)(i == 0 ? -7 : 0);
	}
	run_all(&group, kernels_best(), &options, &memory);
	cr_assert(eq(i8, (int8_t)memory.grads[0], 101));
	cr_assert(eq(i8,
		     (int8_t)memory.grads[group.plan.entries[0].grad_stride],
		     -1));
	cr_assert(memory_drop(&group.plan, &memory));
	group_deinit(&group);
}

Test(reduce, bad_factors_and_flags_are_refused)
{
	const struct reduce_options wrong[] = {
		{.has_factor = 1, .factor = 0},
		{.has_factor = 1, .factor = -1},
		{.has_factor = 1, .factor = NAN},
		{.has_factor = 1, .factor = INFINITY},
		{.flags = 8},
		{.flags = HOST_REDUCE_PARTIAL_IN},
		{.flags = HOST_REDUCE_PARTIAL_OUT},
	};
	const struct plan_policy policy = {0};
	struct group group;

	make_group(&group, DTYPE_F32, 5, &policy, 2, 1);
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		struct error err = ERROR_NULL;
		struct reduce reduce;

		cr_assert(eq(int,
			     reduce_init(&reduce, group.layout, kernels_best(),
					 &wrong[i], &err),
			     -EINVAL));
		cr_assert(gt(sz, strlen(err.msg), 10));
	}
	group_deinit(&group);
}
