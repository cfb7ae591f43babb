/*
 * Plans from requests: the broker and the ranks on devices plan a group from
 * the same request to register it.
 */
#pragma once
#include "collective/plan.h"

struct error;
struct group_request;

/*
 * The parameters and the policy of a request, which must outlive the
 * parameters. The caller frees `*ret_params`, and says whether each rank has
 * memory of its own (`is_per_rank`). -ENOMEM.
 */
int plan_read_request(const struct group_request *request,
		      struct plan_param **ret_params,
		      struct plan_policy *ret_policy, struct error *err);
