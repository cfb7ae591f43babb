/*
 * Plans are made from requests: the broker, and the ranks on devices, compute
 * the plan of a group from the same registration request.
 */
#pragma once
#include "collective/plan.h"

struct error;
struct group_request;

/*
 * Converts the parameters and the policy of a request. The request must outlive
 * the parameters. The caller frees `*ret_params` and sets `is_per_rank`. Can
 * return -ENOMEM.
 */
int plan_read_request(const struct group_request *request,
		      struct plan_param **ret_params,
		      struct plan_policy *ret_policy, struct error *err);
