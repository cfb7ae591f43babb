/*
 * A plan is made in the order of dependence: how each parameter is cut, and in
 * which dtypes it travels; its offset in whole form; its bucket; the offsets of
 * its chunks; the hash of all of that.
 *
 * Every running sum is checked against the limit as it grows, so that no size
 * or offset of a plan, over all of its replicas, is above 2^62.
 */
#include "collective/plan.h"
#include "collective/bucket.h"
#include "collective/divide.h"
#include "collective/plan_impl.h"
#include "proto/error.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define LIMIT (UINT64_C(1) << 62)

/* The state that the steps share. */
struct maker {
	const struct plan_param *params;
	struct plan *plan;
	/* one for each entry, like the next four arrays */
	struct bucket_item *items;
	uint32_t *buckets;
	/* for the range that is being laid out: */
	uint64_t *sizes; /* bytes of one chunk of the entry */
	uint64_t *offsets, *strides;
	struct error *err;
};

/* ------------------------------------------------------------- checks */

static int check_mesh(uint32_t n_shards, uint32_t n_replicas, uint32_t max,
		      struct error *err)
{
	if (n_shards == 0 || n_replicas == 0)
		return error_set(err, -EINVAL,
				 "a mesh of %u shards and %u replicas has no "
				 "ranks",
				 n_shards, n_replicas);
	if ((uint64_t)n_shards * n_replicas > max)
		return error_set(err, -EINVAL,
				 "a mesh of %u shards and %u replicas has more "
				 "than %u ranks",
				 n_shards, n_replicas, max);
	return 0;
}

static int compare_names(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int check_names(const struct plan_param *params, uint32_t n,
		       struct error *err)
{
	const char **names = calloc(n, sizeof(*names));
	int r = 0;

	if (!names)
		return error_nomem(err, "%u names", n);
	for (uint32_t i = 0; i < n; i++)
		names[i] = params[i].name;
	qsort(names, n, sizeof(*names), compare_names);
	for (uint32_t i = 0; i + 1 < n && r == 0; i++) {
		if (strcmp(names[i], names[i + 1]) == 0)
			r = error_set(err, -EINVAL,
				      "two parameters are named \"%s\"",
				      names[i]);
	}
	free(names);
	return r;
}

static int check_params(const struct plan_param *params, uint32_t n,
			struct error *err)
{
	if (n == 0 || n > PLAN_MAX_PARAMS)
		return error_set(
			err, -EINVAL,
			"there are %u parameters, but a group has 1 to %d", n,
			PLAN_MAX_PARAMS);
	for (uint32_t i = 0; i < n; i++) {
		if (!params[i].name || !params[i].name[0])
			return error_set(err, -EINVAL,
					 "parameter %u has no name", i);
	}
	return check_names(params, n, err);
}

static int check_caps(const double *caps_mb, uint32_t n, const char *what,
		      struct error *err)
{
	if (n > PLAN_MAX_CAPS)
		return error_set(err, -EINVAL,
				 "there are %u caps of %s buckets, but at most "
				 "%d are allowed",
				 n, what, PLAN_MAX_CAPS);
	for (uint32_t i = 0; i < n; i++) {
		int r = bucket_check_cap(caps_mb[i], err);

		if (r < 0)
			return error_wrap(err, r, "%s bucket %u", what, i);
	}
	return 0;
}

static int check_policy(const struct plan_policy *policy, struct error *err)
{
	int r;

	if (policy->param_dtype && !dtype_size(policy->param_dtype))
		return error_set(err, -EINVAL, "the param dtype %u is unknown",
				 policy->param_dtype);
	if (policy->input_dtype && !dtype_size(policy->input_dtype))
		return error_set(err, -EINVAL, "the input dtype %u is unknown",
				 policy->input_dtype);
	if (policy->reduce_dtype && !dtype_size(policy->reduce_dtype))
		return error_set(err, -EINVAL, "the reduce dtype %u is unknown",
				 policy->reduce_dtype);
	if (policy->layout != PLAN_IN_PLACE && policy->layout != PLAN_FLAT)
		return error_set(err, -EINVAL, "there is no layout %d",
				 (int)policy->layout);
	if (policy->is_offloaded && !policy->is_per_rank)
		return error_set(err, -EINVAL,
				 "cannot offload: all memory of this "
				 "communicator is in host memory; give offload "
				 "only for communicators on devices");
	r = check_caps(policy->gather_caps_mb, policy->n_gather_caps, "gather",
		       err);
	if (r < 0)
		return r;
	return check_caps(policy->reduce_caps_mb, policy->n_reduce_caps,
			  "reduce", err);
}

/* ------------------------------------------------------------- dtypes */

static bool is_float(uint32_t dtype)
{
	return dtype >= DTYPE_F16 && dtype <= DTYPE_F8_E5M2;
}

/* Returns the dtype that `from` becomes if the policy has `wanted`: `from`
 * itself if `wanted` is 0, or if `from` is not floating point. */
static int cast(uint32_t from, uint32_t wanted, const char *what, uint32_t *ret,
		struct error *err)
{
	*ret = from;
	if (!wanted || wanted == from || !is_float(from))
		return 0;
	/* 8-bit floats are sent as they are: no kernel casts them. */
	if (!dtype_is_float(from) || !dtype_is_float(wanted))
		return error_set(err, -EINVAL,
				 "%s cannot be cast to the %s dtype %s: casts "
				 "are between f16, bf16, f32 and f64; put it "
				 "in a group without a %s dtype",
				 dtype_name(from), what, dtype_name(wanted),
				 what);
	*ret = wanted;
	return 0;
}

static int set_dtypes(const struct plan_param *param, const struct plan *plan,
		      struct plan_entry *entry, struct error *err)
{
	struct divide_input input = {
		.n_shards = plan->n_shards,
		.n_replicas = plan->n_replicas,
	};
	struct divide divide;
	int r;

	entry->dtype = param->type.dtype;
	r = cast(entry->dtype, plan->policy.param_dtype, "param",
		 &entry->full_dtype, err);
	if (r < 0 || param->is_frozen)
		return r;
	r = cast(entry->full_dtype, plan->policy.input_dtype, "input",
		 &entry->input_dtype, err);
	if (r >= 0)
		r = cast(entry->input_dtype, plan->policy.reduce_dtype,
			 "reduce", &entry->reduce_dtype, err);
	if (r < 0)
		return r;
	input.dtype = entry->reduce_dtype;
	r = divide_make(&input, &divide, err);
	if (r < 0)
		return error_wrap(
			err, r,
			"its gradient (freeze the parameter if it has none)");
	return 0;
}

static int make_entries(struct maker *maker)
{
	struct plan *plan = maker->plan;

	for (uint32_t i = 0; i < plan->n_entries; i++) {
		const struct plan_param *param = &maker->params[i];
		struct plan_entry *entry = &plan->entries[i];
		int r = shard_make(&param->type, param->shard_dim,
				   plan->n_shards, &entry->shard, maker->err);

		if (r >= 0)
			r = set_dtypes(param, plan, entry, maker->err);
		if (r < 0)
			return error_wrap(maker->err, r, "parameter \"%s\"",
					  param->name);
	}
	return 0;
}

/* ------------------------------------------------------------- places */

/* Returns the bytes of so many elements, or a value above the limit if they are
 * more than the limit. */
static uint64_t size_of(uint64_t numel, uint32_t dtype)
{
	uint64_t size;

	if (__builtin_mul_overflow(numel, dtype_size(dtype), &size) ||
	    size > LIMIT)
		return LIMIT + 1;
	return size;
}

static uint64_t align(uint64_t offset)
{
	return (offset + PLAN_ALIGN - 1) / PLAN_ALIGN * PLAN_ALIGN;
}

/* Moves `at` past `n` times `size`, to the next aligned offset. `i` is the
 * entry that an error names. */
static int advance(const struct maker *maker, uint32_t i, uint64_t n,
		   uint64_t size, uint64_t *at)
{
	uint64_t end;

	if (__builtin_mul_overflow(n, size, &end) ||
	    __builtin_add_overflow(end, *at, &end) ||
	    end > LIMIT / maker->plan->n_replicas - PLAN_ALIGN)
		return error_set(
			maker->err, -EOVERFLOW,
			"with parameter \"%s\" the group exceeds 2^62 bytes",
			maker->params[i].name);
	*at = align(end);
	return 0;
}

static int place_wholes(struct maker *maker)
{
	struct plan *plan = maker->plan;
	uint64_t full = 0, input = 0;

	for (uint32_t i = 0; i < plan->n_entries; i++) {
		struct plan_entry *entry = &plan->entries[i];
		uint64_t numel = entry->shard.padded_numel;
		int r;

		entry->full_offset = full;
		r = advance(maker, i, 1, size_of(numel, entry->full_dtype),
			    &full);
		if (r < 0)
			return r;
		if (!entry->reduce_dtype)
			continue;
		entry->input_offset = input;
		r = advance(maker, i, 1, size_of(numel, entry->input_dtype),
			    &input);
		if (r < 0)
			return r;
	}
	plan->full_size = full;
	plan->input_size = input;
	return 0;
}

/* Lays out entry after entry, with the chunks of each one after another. */
static int place_in_place(struct maker *maker, uint64_t *ret_size)
{
	const struct plan *plan = maker->plan;
	uint64_t at = 0;

	for (uint32_t i = 0; i < plan->n_entries; i++) {
		int r;

		if (maker->buckets[i] == BUCKET_NONE)
			continue;
		maker->offsets[i] = at;
		maker->strides[i] = maker->sizes[i];
		r = advance(maker, i, plan->n_shards, maker->sizes[i], &at);
		if (r < 0)
			return r;
	}
	*ret_size = at;
	return 0;
}

/* Lays out one bucket of PLAN_FLAT from entry `first` on: rank after rank, each
 * with its chunks entry after entry. `at` is the start of the bucket, and
 * becomes its end. */
static int place_bucket(struct maker *maker, uint32_t first, uint64_t *at)
{
	const struct plan *plan = maker->plan;
	uint32_t bucket = maker->buckets[first], last = first;
	uint64_t row = 0;

	for (uint32_t i = first; i < plan->n_entries; i++) {
		int r;

		if (maker->buckets[i] == BUCKET_NONE)
			continue;
		if (maker->buckets[i] != bucket)
			break;
		maker->offsets[i] = *at + row;
		r = advance(maker, i, 1, maker->sizes[i], &row);
		if (r < 0)
			return r;
		last = i;
	}
	for (uint32_t i = first; i <= last; i++) {
		if (maker->buckets[i] == bucket)
			maker->strides[i] = row;
	}
	return advance(maker, last, plan->n_shards, row, at);
}

static int place_flat(struct maker *maker, uint64_t *ret_size)
{
	uint32_t next = 0;
	uint64_t at = 0;

	/* The entries of a bucket follow one another, and buckets are numbered
	 * in their order. */
	for (uint32_t i = 0; i < maker->plan->n_entries; i++) {
		int r;

		if (maker->buckets[i] != next)
			continue;
		r = place_bucket(maker, i, &at);
		if (r < 0)
			return r;
		next++;
	}
	*ret_size = at;
	return 0;
}

/* Lays out rank after rank, each with its chunks entry after entry. Then
 * buckets also follow one another. */
static int place_per_rank(struct maker *maker, uint64_t *ret_size)
{
	const struct plan *plan = maker->plan;
	uint64_t row = 0;

	for (uint32_t i = 0; i < plan->n_entries; i++) {
		int r;

		if (maker->buckets[i] == BUCKET_NONE)
			continue;
		maker->offsets[i] = row;
		r = advance(maker, i, 1, maker->sizes[i], &row);
		if (r < 0)
			return r;
	}
	for (uint32_t i = 0; i < plan->n_entries; i++) {
		if (maker->buckets[i] != BUCKET_NONE)
			maker->strides[i] = row;
	}
	*ret_size = 0;
	return advance(maker, plan->n_entries - 1, plan->n_shards, row,
		       ret_size);
}

/* Computes `offsets` and `strides` from `sizes` and `buckets`. Both are 0 for
 * entries that are in no bucket. */
static int place_chunks(struct maker *maker, uint64_t *ret_size)
{
	size_t n = maker->plan->n_entries;

	memset(maker->offsets, 0, n * sizeof(*maker->offsets));
	memset(maker->strides, 0, n * sizeof(*maker->strides));
	if (maker->plan->policy.is_per_rank)
		return place_per_rank(maker, ret_size);
	if (maker->plan->policy.layout == PLAN_FLAT)
		return place_flat(maker, ret_size);
	return place_in_place(maker, ret_size);
}

/* ------------------------------------------------------------ buckets */

/* Computes `buckets` from `items`. */
static int fill_buckets(struct maker *maker, const double *caps_mb,
			uint32_t n_caps, uint32_t *ret_n)
{
	const struct bucket_options options = {
		.caps_mb = caps_mb,
		.n_caps = n_caps,
	};

	return bucket_plan(maker->items, maker->plan->n_entries, &options,
			   maker->buckets, ret_n, maker->err);
}

/* Plans the gathers. Entries that are gathered in the same dtype may share a
 * bucket; their size is that of all ranks' chunks in this dtype. Shards lie in
 * the order of the gathers. */
static int plan_gathers(struct maker *maker)
{
	struct plan *plan = maker->plan;
	int r;

	for (uint32_t i = 0; i < plan->n_entries; i++) {
		const struct plan_entry *entry = &plan->entries[i];

		maker->items[i] = (struct bucket_item){
			.key = entry->full_dtype,
			.size = size_of(entry->shard.padded_numel,
					entry->full_dtype),
		};
		maker->sizes[i] =
			size_of(entry->shard.chunk_numel, entry->dtype);
	}
	r = fill_buckets(maker, plan->policy.gather_caps_mb,
			 plan->policy.n_gather_caps, &plan->n_gather_buckets);
	if (r >= 0)
		r = place_chunks(maker, &plan->shards_size);
	if (r < 0)
		return r;
	for (uint32_t i = 0; i < plan->n_entries; i++) {
		plan->entries[i].gather_bucket = maker->buckets[i];
		plan->entries[i].shard_offset = maker->offsets[i];
		plan->entries[i].shard_stride = maker->strides[i];
	}
	return 0;
}

/* Each bucket of reductions has one reduce dtype; sizes are of the input,
 * before the reduction. */
static int fill_reduce_items(struct maker *maker)
{
	const struct plan *plan = maker->plan;
	uint64_t sum = 0;

	for (uint32_t i = 0; i < plan->n_entries; i++) {
		const struct plan_entry *entry = &plan->entries[i];
		int r;

		maker->items[i] = (struct bucket_item){.is_rejected = true};
		if (!entry->reduce_dtype)
			continue;
		maker->items[i] = (struct bucket_item){
			.key = entry->reduce_dtype,
			.size = size_of(entry->shard.padded_numel,
					entry->reduce_dtype),
		};
		r = advance(maker, i, 1, maker->items[i].size, &sum);
		if (r < 0)
			return r;
	}
	return 0;
}

static int place_grads(struct maker *maker)
{
	struct plan *plan = maker->plan;
	int r;

	for (uint32_t i = 0; i < plan->n_entries; i++)
		maker->sizes[i] = size_of(plan->entries[i].shard.chunk_numel,
					  plan->entries[i].dtype);
	r = place_chunks(maker, &plan->grads_size);
	if (r < 0)
		return r;
	for (uint32_t i = 0; i < plan->n_entries; i++) {
		plan->entries[i].reduce_bucket = maker->buckets[i];
		plan->entries[i].grad_offset = maker->offsets[i];
		plan->entries[i].grad_stride = maker->strides[i];
	}
	return 0;
}

static int place_partials(struct maker *maker)
{
	struct plan *plan = maker->plan;
	int r;

	for (uint32_t i = 0; i < plan->n_entries; i++)
		maker->sizes[i] = size_of(plan->entries[i].shard.chunk_numel,
					  plan->entries[i].reduce_dtype);
	r = place_chunks(maker, &plan->partial_size);
	if (r < 0)
		return r;
	for (uint32_t i = 0; i < plan->n_entries; i++) {
		plan->entries[i].partial_offset = maker->offsets[i];
		plan->entries[i].partial_stride = maker->strides[i];
	}
	return 0;
}

static int plan_reductions(struct maker *maker)
{
	struct plan *plan = maker->plan;
	int r = fill_reduce_items(maker);

	if (r < 0)
		return r;
	r = fill_buckets(maker, plan->policy.reduce_caps_mb,
			 plan->policy.n_reduce_caps, &plan->n_reduce_buckets);
	if (r >= 0)
		r = place_grads(maker);
	if (r >= 0 && plan->n_replicas > 1)
		r = place_partials(maker);
	return r;
}

/* --------------------------------------------------------------- plan */

static bool is_in_place(const struct plan *plan)
{
	if (plan->policy.layout != PLAN_IN_PLACE || plan->policy.is_per_rank)
		return false;
	for (uint32_t i = 0; i < plan->n_entries; i++) {
		const struct plan_entry *entry = &plan->entries[i];

		if (entry->full_dtype != entry->dtype)
			return false;
		/* If the shard dimension is not the first, a rank has a piece
		 * of each row. */
		if (entry->shard.n_rows > 1 && plan->n_shards > 1)
			return false;
	}
	return true;
}

static int make(struct maker *maker)
{
	int r = make_entries(maker);

	if (r >= 0)
		r = place_wholes(maker);
	if (r >= 0)
		r = plan_gathers(maker);
	if (r >= 0)
		r = plan_reductions(maker);
	if (r < 0)
		return r;
	maker->plan->is_in_place = is_in_place(maker->plan);
	return plan_set_hash(maker->plan, maker->params, maker->err);
}

static int allocate(struct maker *maker, uint32_t n)
{
	maker->plan->entries = calloc(n, sizeof(*maker->plan->entries));
	maker->items = calloc(n, sizeof(*maker->items));
	maker->buckets = calloc(n, sizeof(*maker->buckets));
	maker->sizes = calloc(n, sizeof(*maker->sizes));
	maker->offsets = calloc(n, sizeof(*maker->offsets));
	maker->strides = calloc(n, sizeof(*maker->strides));
	if (!maker->plan->entries || !maker->items || !maker->buckets ||
	    !maker->sizes || !maker->offsets || !maker->strides)
		return error_nomem(maker->err, "a plan of %u parameters", n);
	maker->plan->n_entries = n;
	return 0;
}

static void maker_deinit(struct maker *maker)
{
	free(maker->items);
	free(maker->buckets);
	free(maker->sizes);
	free(maker->offsets);
	free(maker->strides);
}

int plan_make(const struct plan_param *params, uint32_t n_params,
	      const struct plan_policy *policy, uint32_t n_shards,
	      uint32_t n_replicas, struct plan *ret, struct error *err)
{
	struct plan plan = {
		.n_shards = n_shards,
		.n_replicas = n_replicas,
		.policy = *policy,
	};
	struct maker maker = {.params = params, .plan = &plan, .err = err};
	int r = check_mesh(
		n_shards, n_replicas,
		policy->is_per_rank ? PLAN_MAX_WORLD : PLAN_MAX_RANKS, err);

	if (r >= 0)
		r = check_policy(policy, err);
	if (r >= 0)
		r = check_params(params, n_params, err);
	if (r < 0)
		return r;
	r = allocate(&maker, n_params);
	if (r >= 0)
		r = make(&maker);
	maker_deinit(&maker);
	if (r < 0) {
		plan_deinit(&plan);
		return r;
	}
	*ret = plan;
	return 0;
}

void plan_deinit(struct plan *plan)
{
	free(plan->entries);
	*plan = (struct plan){0};
}

/* If `n` divides the number of shards, it also divides each parameter: when
 * padded, a parameter has as many chunks as there are shards. */
int plan_check_mesh(const struct plan *plan, uint32_t n, struct error *err)
{
	if (n == 0 || plan->n_shards % n != 0)
		return error_set(err, -EINVAL,
				 "a mesh of %u ranks does not fit %u shards; "
				 "the number of shards must be a multiple of "
				 "the number of its ranks",
				 n, plan->n_shards);
	return 0;
}
