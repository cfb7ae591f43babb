/*
 * The generator only draws cases that are possible; other tests cover refusals.
 * Each value is a function of its position.
 */
#include "tests/lib/property.h"
#include "tests/lib/scalar.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

#define TIMEOUT_MS 120000 /* only a rank that hangs reaches it */

/* --- chance -------------------------------------------------------------- */

struct chance {
	uint64_t state;
};

uint64_t mix(uint64_t x)
{
	x += UINT64_C(0x9e3779b97f4a7c15);
	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return x ^ x >> 31;
}

static uint32_t draw(struct chance *chance, uint32_t below)
{
	chance->state = mix(chance->state);
	return (uint32_t)(chance->state >> 32) % below;
}

static bool one_in(struct chance *chance, uint32_t n)
{
	return draw(chance, n) == 0;
}

/* --- cases --------------------------------------------------------------- */

static enum fsdp_dtype draw_float(struct chance *chance)
{
	return FSDP_F16 + draw(chance, 4);
}

static enum fsdp_dtype draw_dtype(struct chance *chance, bool may_be_odd)
{
	static const enum fsdp_dtype odd[] = {
		FSDP_BOOL, FSDP_F8_E4M3, FSDP_F8_E5M2, FSDP_C64, FSDP_C128};

	if (may_be_odd)
		return odd[draw(chance, 5)];
	if (one_in(chance, 4))
		return FSDP_U8 + draw(chance, 8);
	return draw_float(chance);
}

static void draw_shape(struct chance *chance, uint32_t n_shards,
		       struct param_case *ret)
{
	struct fsdp_spec *spec = &ret->spec.spec;

	spec->n_dims = draw(chance, 5);
	for (uint32_t d = 0; d < spec->n_dims; d++)
		spec->shape[d] = 1 + draw(chance, 7);
	if (spec->n_dims == 0)
		return;
	if (one_in(chance, 6))
		spec->shape[0] = 1 + draw(chance, 400);
	if (one_in(chance, 24))
		spec->shape[0] = 20000 / spec->n_dims / spec->n_dims;
	ret->dim = one_in(chance, 3) ? draw(chance, spec->n_dims) : 0;
	if (ret->dim > 0)
		spec->shape[ret->dim] = n_shards * (1 + draw(chance, 4));
	if (one_in(chance, 10))
		spec->shape[draw(chance, spec->n_dims)] = 0;
	ret->spec.shard_dim = (int32_t)ret->dim;
	if (one_in(chance, 3))
		ret->spec.shard_dim -= (int32_t)spec->n_dims;
}

static void draw_param(struct chance *chance, const struct property_case *it,
		       const struct fsdp_policy *policy, struct param_case *ret)
{
	bool is_odd = !policy->param_dtype && one_in(chance, 12);
	enum fsdp_dtype dtype = draw_dtype(chance, is_odd);

	draw_shape(chance, it->n_shards, ret);
	ret->spec.spec.dtype = dtype;
	ret->spec.is_frozen = is_odd || one_in(chance, 6);
	ret->is_wild = one_in(chance, 4);
	ret->numel = 1;
	for (uint32_t d = 0; d < ret->spec.spec.n_dims; d++)
		ret->numel *= (uint64_t)ret->spec.spec.shape[d];
	ret->full = dtype;
	if (policy->param_dtype && scalar_is_float(dtype))
		ret->full = policy->param_dtype;
	if (ret->spec.is_frozen)
		return;
	ret->input = ret->full;
	if (policy->input_dtype && scalar_is_float(dtype))
		ret->input = policy->input_dtype;
	ret->reduce = ret->input;
	if (policy->reduce_dtype && scalar_is_float(dtype))
		ret->reduce = policy->reduce_dtype;
}

/* Draws the divide factor. Most reductions of a group have the same one. */
static void draw_factor(struct chance *chance, const struct group_case *group,
			const struct property_case *it,
			struct fsdp_reduce_options *ret)
{
	static const double factors[] = {1, 2, 3, 5, 8, 12, 100};
	static const double fractions[] = {0.5, 0.75, 2.5, 1e-3, 3.14159};

	ret->is_sum_forced = one_in(chance, 4);
	ret->has_factor = one_in(chance, 2);
	ret->factor = 0;
	if (!ret->has_factor)
		return;
	ret->factor = factors[draw(chance, 7)];
	if (one_in(chance, 4))
		ret->factor = it->n_shards;
	if (!group->has_integers && one_in(chance, 3))
		ret->factor = fractions[draw(chance, 5)];
}

static void draw_group(struct chance *chance, const struct property_case *it,
		       struct group_case *ret)
{
	struct fsdp_policy *policy = &ret->policy;

	if (one_in(chance, 2))
		policy->param_dtype = draw_float(chance);
	if (one_in(chance, 3))
		policy->input_dtype = draw_float(chance);
	if (one_in(chance, 2))
		policy->reduce_dtype = draw_float(chance);
	policy->layout = draw(chance, 2);
	policy->gather_cap_mb = one_in(chance, 2) ? 0.0005 : 0;
	policy->reduce_cap_mb = one_in(chance, 2) ? 0.001 : 0;
	policy->stays_unsharded = one_in(chance, 4);
	ret->n = 1 + draw(chance, MAX_PARAMS);
	for (size_t p = 0; p < ret->n; p++) {
		draw_param(chance, it, policy, &ret->params[p]);
		snprintf(ret->params[p].name, sizeof(ret->params[p].name),
			 "p%zu", p);
		ret->is_trained |= ret->params[p].reduce != 0;
		ret->has_integers |= scalar_is_integer(ret->params[p].reduce);
	}
	draw_factor(chance, ret, it, &ret->options);
}

static void draw_round(struct chance *chance, const struct group_case *group,
		       const struct property_case *it, struct round_case *ret)
{
	ret->waits = one_in(chance, 2);
	ret->options = group->options;
	if (one_in(chance, 8))
		draw_factor(chance, group, it, &ret->options);
	ret->options.accumulates = one_in(chance, 2);
	ret->options.no_all_reduce = one_in(chance, 3);
}

static void draw_step(struct chance *chance, const struct property_case *it,
		      struct step_case *ret)
{
	for (uint32_t g = 0; g < it->n_groups; g++) {
		uint32_t other = draw(chance, g + 1);

		ret->order[g] = ret->order[other];
		ret->order[other] = g;
		if (it->n_shards % 2 == 0 && one_in(chance, 3))
			ret->n_mesh[g] = it->n_shards / 2;
		if (it->groups[g].is_trained)
			ret->n_rounds[g] = draw(chance, MAX_ROUNDS + 1);
		for (uint32_t i = 0; i < ret->n_rounds[g]; i++)
			draw_round(chance, &it->groups[g], it,
				   &ret->rounds[g][i]);
	}
}

void case_draw(uint64_t seed, struct property_case *ret)
{
	struct chance chance = {seed};

	memset(ret, 0, sizeof(*ret));
	ret->seed = seed;
	ret->world = 1 + draw(&chance, MAX_WORLD);
	do
		ret->n_shards = 1 + draw(&chance, ret->world);
	while (ret->world % ret->n_shards != 0);
	ret->n_replicas = ret->world / ret->n_shards;
	ret->options.n_shards = ret->n_shards;
	ret->options.timeout_ms = TIMEOUT_MS;
	ret->options.limiter = draw(&chance, 2);
	ret->options.limit = draw(&chance, 4);
	ret->options.limit_bytes = one_in(&chance, 3) ? 5000 : 0;
	ret->options.n_inputs = 1 + draw(&chance, 3);
	ret->n_groups = 1 + draw(&chance, MAX_GROUPS);
	for (size_t g = 0; g < ret->n_groups; g++) {
		snprintf(ret->groups[g].name, sizeof(ret->groups[g].name),
			 "g%zu", g);
		draw_group(&chance, ret, &ret->groups[g]);
	}
	for (size_t s = 0; s < N_STEPS; s++)
		draw_step(&chance, ret, &ret->steps[s]);
}

/* --- values -------------------------------------------------------------- */

static uint64_t value_at(const struct location *location, enum fsdp_dtype dtype)
{
	const struct param_case *param =
		&location->it->groups[location->group].params[location->param];
	uint64_t h = mix(location->it->seed ^ location->index);
	double value;

	h = mix(h ^ location->group << 8 ^ location->param << 16 ^
		location->step << 24 ^ (uint64_t)location->who << 32 ^
		(uint64_t)location->round << 40);
	if (param->is_wild || !scalar_is_float(dtype))
		return h >> (64 - 8 * (fsdp_dtype_size(dtype) < 8
					       ? fsdp_dtype_size(dtype)
					       : 8));
	value = (double)(int64_t)h * 0x1p-63;
	return scalar_encode(dtype, ldexp(value, (int)(h % 5) - 2));
}

uint64_t value_of_param(struct location *location, uint32_t replica,
			uint64_t step)
{
	const struct param_case *param =
		&location->it->groups[location->group].params[location->param];

	location->round = 0;
	location->who = replica;
	/* A commit keeps frozen parameters as they are. */
	location->step = param->spec.is_frozen ? 1 : step;
	return value_at(location, param->spec.spec.dtype);
}

uint64_t value_of_gradient(struct location *location, uint32_t rank)
{
	const struct param_case *param =
		&location->it->groups[location->group].params[location->param];

	location->who = rank;
	return value_at(location, param->input);
}

/* --- the reference: docs/fsdp.md, "Arithmetic" --------------------------- */

static double half_of(double factor)
{
	double pre = 1;

	while (fmod(factor, pre) == 0 && factor / pre > pre)
		pre *= 2;
	return pre;
}

struct factors factors_of(const struct property_case *it,
			  enum fsdp_dtype reduce,
			  const struct fsdp_reduce_options *options)
{
	struct factors ret = {1, 1, 1, SUM, SUM};
	double world = it->world;
	double factor = options->has_factor ? options->factor : world;

	if (scalar_is_integer(reduce) || it->world == 1) {
		ret.post = factor;
	} else if (reduce == FSDP_F16 || reduce == FSDP_F64) {
		ret.pre = half_of(factor);
		ret.post = factor / ret.pre;
	} else if (options->is_sum_forced ||
		   (options->has_factor && it->n_shards == 1)) {
		ret.post = factor;
	} else if (!options->has_factor) {
		ret.scatter = it->world > 1 ? AVG : SUM;
		ret.all_reduce = ret.scatter;
	} else if (factor != 1 && factor == it->n_shards) {
		ret.scatter = AVG;
	} else if (factor != 1) {
		ret.premul = 1 / factor;
	}
	return ret;
}

static uint64_t input_of(struct reduction *reduction, uint32_t rank)
{
	return value_of_gradient(&reduction->location, rank);
}

/* Computes steps 1 to 3 for one mesh. Returns a sum of the reduce dtype. */
static double sum_floats(struct reduction *reduction, uint32_t replica,
			 uint64_t partial)
{
	enum fsdp_dtype input = reduction->param->input;
	enum fsdp_dtype reduce = reduction->param->reduce;
	enum fsdp_dtype acc = scalar_accumulator(reduce);
	const struct factors *factors = &reduction->factors;
	uint32_t n = reduction->it->n_shards;
	double sum = 0, value;

	for (uint32_t s = 0; s < n; s++) {
		uint64_t bits = input_of(reduction, replica * n + s);

		value = scalar_round(reduce, scalar_decode(input, bits));
		if (factors->premul != 1)
			value = scalar_multiply(
				acc, value, scalar_round(acc, factors->premul));
		else
			value = scalar_divide(acc, value, factors->pre);
		sum = s == 0 ? value : scalar_add(acc, sum, value);
	}
	if (factors->scatter == AVG)
		sum = scalar_divide(acc, sum, n);
	sum = scalar_round(reduce, sum);
	if (!reduction->has_partial)
		return sum;
	return scalar_round(
		reduce, scalar_add(acc, sum, scalar_decode(reduce, partial)));
}

/* Computes steps 4 and 5. */
static uint64_t finish_floats(const struct reduction *reduction,
			      const double *sums, uint64_t grad)
{
	enum fsdp_dtype reduce = reduction->param->reduce;
	enum fsdp_dtype stored = reduction->param->spec.spec.dtype;
	enum fsdp_dtype acc = scalar_accumulator(reduce);
	uint32_t n = reduction->it->n_replicas;
	double sum = sums[0];
	uint64_t bits;

	for (uint32_t g = 1; g < n; g++)
		sum = scalar_add(acc, sum, sums[g]);
	if (n > 1 && reduction->factors.all_reduce == AVG)
		sum = scalar_divide(acc, sum, n);
	sum = scalar_round(reduce, sum);
	sum = scalar_divide(acc, sum,
			    scalar_round(acc, reduction->factors.post));
	bits = scalar_encode(stored, sum);
	if (!reduction->options->accumulates || !reduction->has_grads)
		return bits;
	sum = scalar_add(scalar_accumulator(stored),
			 scalar_decode(stored, grad),
			 scalar_decode(stored, bits));
	return scalar_encode(stored, sum);
}

static void reduce_floats(struct reduction *reduction, struct element *element)
{
	enum fsdp_dtype reduce = reduction->param->reduce;
	double sums[MAX_WORLD];

	for (uint32_t g = 0; g < reduction->it->n_replicas; g++)
		sums[g] = sum_floats(reduction, g, element->partial[g]);
	if (!reduction->is_put_off) {
		element->grad = finish_floats(reduction, sums, element->grad);
		return;
	}
	for (uint32_t g = 0; g < reduction->it->n_replicas; g++)
		element->partial[g] = scalar_encode(reduce, sums[g]);
}

/* Sums have 64 bits until they are stored, and are truncated then. */
static void reduce_integers(struct reduction *reduction,
			    struct element *element)
{
	enum fsdp_dtype dtype = reduction->param->full;
	uint32_t n = reduction->it->n_shards;
	uint64_t sum, total = 0;

	for (uint32_t g = 0; g < reduction->it->n_replicas; g++) {
		sum = 0;
		for (uint32_t s = 0; s < n; s++)
			sum += scalar_widen(dtype,
					    input_of(reduction, g * n + s));
		if (reduction->has_partial)
			sum += scalar_widen(dtype, element->partial[g]);
		if (reduction->is_put_off)
			element->partial[g] = scalar_narrow(dtype, sum);
		total += sum;
	}
	if (reduction->is_put_off)
		return;
	total = scalar_divide_integer(dtype, total, reduction->factors.post);
	if (reduction->options->accumulates && reduction->has_grads)
		total += scalar_widen(dtype, element->grad);
	element->grad = scalar_narrow(dtype, total);
}

/* Computes the mean, or the sum divided by the factor, in f64. */
static void reduce_oracle(struct reduction *reduction, struct element *element)
{
	const struct fsdp_reduce_options *options = reduction->options;
	double factor =
		options->has_factor ? options->factor : reduction->it->world;
	double sum = 0, size = 0, value;

	for (uint32_t rank = 0; rank < reduction->it->world; rank++) {
		value = scalar_decode(reduction->param->input,
				      input_of(reduction, rank));
		sum += value / factor;
		size += fabs(value) / factor;
	}
	if (reduction->has_partial) {
		sum += element->partial_oracle;
		size += element->partial_size;
	}
	if (reduction->is_put_off) {
		element->partial_oracle = sum;
		element->partial_size = size;
		return;
	}
	if (options->accumulates && reduction->has_grads) {
		sum += element->oracle;
		size += element->size;
	}
	element->oracle = sum;
	element->size = size;
}

void reduction_apply(struct reduction *reduction, struct element *element)
{
	if (scalar_is_integer(reduction->param->reduce)) {
		reduce_integers(reduction, element);
		return;
	}
	reduce_floats(reduction, element);
	reduce_oracle(reduction, element);
}
