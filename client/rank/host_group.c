#include "client/rank/host_group.h"
#include "client/rank/comm.h"
#include "client/rank/host_reduce.h"
#include "collective/host/layout.h"
#include "collective/plan_request.h"
#include <errno.h>
#include <stdlib.h>

static int make_plan(const struct fsdp_comm *comm,
		     const struct group_request *asked, struct plan *ret,
		     struct error *err)
{
	struct plan_policy policy;
	struct plan_param *params;
	int r = plan_read_request(asked, &params, &policy, err);

	if (r < 0)
		return r;
	r = plan_make(params, asked->n_params, &policy, comm->n_shards,
		      comm->n_replicas, ret, err);
	free(params);
	return r;
}

static int fill(struct host_group *own, uint64_t hash, struct error *err)
{
	if (own->plan.hash != hash)
		return error_set(err, -EPROTO,
				 "this library lays the group out in another "
				 "way than fsdpd; both must be of one version");
	return layout_new(&own->plan, &own->layout, err);
}

int host_group_new(struct fsdp_group *group, const struct group_request *asked,
		   uint64_t hash, struct error *err)
{
	/* The group counts also if this call fails, because the broker has
	 * it. */
	uint32_t index = group->comm->reducer->n_groups++;
	struct host_group *own = calloc(1, sizeof(*own));
	int r;

	if (!own)
		return error_nomem(err, "a group");
	own->index = index;
	r = make_plan(group->comm, asked, &own->plan, err);
	if (r < 0) {
		free(own);
		return r;
	}
	r = fill(own, hash, err);
	if (r < 0) {
		host_group_free(own);
		return r;
	}
	group->host = own;
	return 0;
}

bool host_group_has_gradients(const struct host_group *group)
{
	const struct plan *plan = &group->plan;
	uint32_t i = 0;

	while (i < plan->n_entries && !plan->entries[i].reduce_dtype)
		i++;
	return i < plan->n_entries;
}

static uint64_t size_of(const struct fsdp_tensor *tensor)
{
	return tensor ? desc_rest(tensor_desc(tensor))->size : 0;
}

int host_group_check_memory(const struct fsdp_group *group, struct error *err)
{
	const struct plan *plan = &group->host->plan;
	uint64_t shards = plan->shards_size * plan->n_replicas;
	uint64_t grads = plan->grads_size * plan->n_replicas;

	if (size_of(group->shards[0]) >= shards &&
	    size_of(group->shards[1]) >= shards &&
	    size_of(group->grads) >= grads)
		return 0;
	return error_set(err, -EPROTO,
			 "fsdpd gave '%s' less memory than its plan takes",
			 group->name);
}

void host_group_end_handles(struct host_group *group)
{
	fsdp_free(group->partial);
	group->partial = NULL;
}

void host_group_free(struct host_group *group)
{
	if (!group)
		return;
	layout_free(group->layout);
	plan_deinit(&group->plan);
	free(group);
}
