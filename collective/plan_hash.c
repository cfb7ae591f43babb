/*
 * The hash of a plan is XXH3 over everything that must agree, one field after
 * another as little-endian 64-bit words, with the length before each string. So
 * two different plans never have the same bytes, and all machines compute the
 * same hash.
 */
#include "collective/plan.h"
#include "collective/plan_impl.h"
#include "proto/error.h"
#include <endian.h>
#include <string.h>
#include <xxhash.h>

static void put(XXH3_state_t *state, uint64_t value)
{
	uint64_t word = htole64(value);

	(void)XXH3_64bits_update(state, &word, sizeof(word));
}

static void put_caps(XXH3_state_t *state, const double *caps_mb, uint32_t n)
{
	put(state, n);
	for (uint32_t i = 0; i < n; i++) {
		double cap = caps_mb[i] + 0.0; /* turns -0 into 0 */
		uint64_t bits;

		memcpy(&bits, &cap, sizeof(bits));
		put(state, bits);
	}
}

static void put_policy(XXH3_state_t *state, const struct plan_policy *policy)
{
	put(state, policy->param_dtype);
	put(state, policy->reduce_dtype);
	put(state, policy->layout);
	put_caps(state, policy->gather_caps_mb, policy->n_gather_caps);
	put_caps(state, policy->reduce_caps_mb, policy->n_reduce_caps);
	put(state, policy->stays_unsharded);
	put(state, policy->is_per_rank);
	put(state, policy->is_offloaded);
}

/* The dimension is hashed as a nonnegative number, so that -1 equals the last
 * one. */
static void put_param(XXH3_state_t *state, const struct plan_param *param,
		      const struct plan_entry *entry)
{
	size_t size = strlen(param->name);

	put(state, size);
	(void)XXH3_64bits_update(state, param->name, size);
	put(state, param->type.dtype);
	put(state, param->type.n_dims);
	for (uint32_t i = 0; i < param->type.n_dims; i++)
		put(state, (uint64_t)param->type.shape[i]);
	put(state, entry->shard.dim);
	put(state, param->is_frozen);
}

static void put_entry(XXH3_state_t *state, const struct plan_entry *entry)
{
	put(state, entry->full_dtype);
	put(state, entry->reduce_dtype);
	put(state, entry->gather_bucket);
	put(state, entry->reduce_bucket);
	put(state, entry->shard_offset);
	put(state, entry->shard_stride);
	put(state, entry->full_offset);
	put(state, entry->input_offset);
	put(state, entry->grad_offset);
	put(state, entry->grad_stride);
	put(state, entry->partial_offset);
	put(state, entry->partial_stride);
}

static void put_plan(XXH3_state_t *state, const struct plan *plan,
		     const struct plan_param *params)
{
	put(state, plan->n_shards);
	put(state, plan->n_replicas);
	put_policy(state, &plan->policy);
	put(state, plan->n_entries);
	for (uint32_t i = 0; i < plan->n_entries; i++) {
		put_param(state, &params[i], &plan->entries[i]);
		put_entry(state, &plan->entries[i]);
	}
	put(state, plan->shards_size);
	put(state, plan->full_size);
	put(state, plan->input_size);
	put(state, plan->grads_size);
	put(state, plan->partial_size);
	/* This field was added later. If it is not set, it is not hashed, so
	 * that the hash is the same as before. */
	if (plan->policy.input_dtype)
		put(state, plan->policy.input_dtype);
}

int plan_set_hash(struct plan *plan, const struct plan_param *params,
		  struct error *err)
{
	XXH3_state_t *state = XXH3_createState();

	if (!state)
		return error_nomem(err, "a plan's hash");
	(void)XXH3_64bits_reset(state);
	put_plan(state, plan, params);
	plan->hash = XXH3_64bits_digest(state);
	if (plan->hash == 0)
		plan->hash = 1; /* 0 means that there is no plan */
	(void)XXH3_freeState(state);
	return 0;
}
