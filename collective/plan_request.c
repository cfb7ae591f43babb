#include "collective/plan_request.h"
#include "proto/error.h"
#include "proto/message.h"
#include <stdlib.h>

_Static_assert(MESSAGE_MAX_CAPS == PLAN_MAX_CAPS, "caps fit a policy");

static void read_policy(const struct group_request *request,
			struct plan_policy *ret)
{
	*ret = (struct plan_policy){
		.param_dtype = request->param_dtype,
		.input_dtype = request->input_dtype,
		.reduce_dtype = request->reduce_dtype,
		.layout = (enum plan_layout)request->layout,
		.n_gather_caps = request->n_gather_caps,
		.n_reduce_caps = request->n_reduce_caps,
		.stays_unsharded = request->stays_unsharded,
		.is_offloaded = request->is_offloaded,
	};
	for (uint32_t i = 0; i < request->n_gather_caps; i++)
		ret->gather_caps_mb[i] = request->gather_caps_mb[i];
	for (uint32_t i = 0; i < request->n_reduce_caps; i++)
		ret->reduce_caps_mb[i] = request->reduce_caps_mb[i];
}

int plan_read_request(const struct group_request *request,
		      struct plan_param **ret_params,
		      struct plan_policy *ret_policy, struct error *err)
{
	struct plan_param *params = calloc(request->n_params, sizeof(*params));

	if (!params)
		return error_nomem(err, "%u parameters", request->n_params);
	for (uint32_t i = 0; i < request->n_params; i++)
		params[i] = (struct plan_param){
			.name = request->params[i].name,
			.type = request->params[i].type,
			.shard_dim = request->params[i].shard_dim,
			.is_frozen = request->params[i].is_frozen,
		};
	read_policy(request, ret_policy);
	*ret_params = params;
	return 0;
}
