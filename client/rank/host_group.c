#include "client/rank/host_group.h"
#include "client/rank/comm.h"
#include "collective/host/layout.h"
#include <errno.h>
#include <stdlib.h>

int host_group_new(struct fsdp_group *group, struct plan *plan,
		   struct error *err)
{
	struct host_group *own = calloc(1, sizeof(*own));
	int r;

	if (!own) {
		plan_deinit(plan);
		return error_nomem(err, "a group");
	}
	own->plan = *plan;
	r = layout_new(&own->plan, &own->layout, err);
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
			 "fsdpd gave '%s' less memory than its plan needs",
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
