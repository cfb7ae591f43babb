/*
 * Helpers that build plans for tests.
 */
#pragma once
#include "collective/plan.h"

struct plan_param make_param(const char *name, uint32_t dtype, uint32_t n_dims,
			     const int64_t *shape);

#define PARAM(name, dtype, n_dims, ...)                                        \
	make_param(name, dtype, n_dims, (const int64_t[]){__VA_ARGS__})

/* Build a plan, which must succeed. */
struct plan make(const struct plan_param *params, uint32_t n,
		 const struct plan_policy *policy, uint32_t n_shards,
		 uint32_t n_replicas);

extern const struct plan_policy in_place, flat;
