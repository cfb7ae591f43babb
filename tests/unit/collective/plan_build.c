#include "tests/unit/collective/plan_build.h"
#include "proto/error.h"
#include "tests/lib/check.h"
#include <string.h>

struct plan_param make_param(const char *name, uint32_t dtype, uint32_t n_dims,
			     const int64_t *shape)
{
	struct plan_param param = {
		.name = name,
		.type = {.dtype = dtype, .n_dims = n_dims},
	};

	memcpy(param.type.shape, shape, n_dims * sizeof(*shape));
	tensor_type_contiguous(&param.type);
	return param;
}

struct plan make(const struct plan_param *params, uint32_t n,
		 const struct plan_policy *policy, uint32_t n_shards,
		 uint32_t n_replicas)
{
	struct error err = ERROR_NULL;
	struct plan plan;

	cr_assert(zero(int, plan_make(params, n, policy, n_shards, n_replicas,
				      &plan, &err)),
		  "%s", err.msg);
	return plan;
}

const struct plan_policy in_place = {.layout = PLAN_IN_PLACE};
const struct plan_policy flat = {.layout = PLAN_FLAT};
