/* Inspection of communicators, groups and plans. */
#include "client/client.h"
#include "client/pages.h"
#include <string.h>

_Static_assert((int)FSDP_COMM_KEPT == (int)COMM_KEPT &&
		       (int)FSDP_COMM_JOINING == (int)COMM_JOINING &&
		       (int)FSDP_COMM_RUNNING == (int)COMM_RUNNING &&
		       (int)FSDP_COMM_FAILED == (int)COMM_FAILED,
	       "one numbering of states");

static int show_comm(const struct comm_item *item, fsdp_comm_fn *fn, void *data)
{
	struct fsdp_comm_entry entry = {
		.struct_size = sizeof(entry),
		.name = item->name,
		.uid = item->uid,
		.state = (enum fsdp_comm_state)item->state,
		.n_ranks = item->n_ranks,
		.n_shards = item->n_shards,
		.n_joined = item->n_joined,
		.n_groups = item->n_groups,
		.step = item->step,
		.n_bytes = item->n_bytes,
		.ttl_left_ms = item->ttl_left_ms,
		.n_in_flight = item->n_in_flight,
		.n_limited = item->n_limited,
		.bytes_in_flight = item->bytes_in_flight,
		.note = item->note,
		.n_local = item->n_local,
		.is_on_devices = item->is_on_devices,
		.executor = (enum fsdp_executor)item->executor,
	};

	return fn(&entry, data);
}

int fsdp_comms(struct fsdp_client *client, fsdp_comm_fn *fn, void *data)
{
	struct request request = {.kind = MESSAGE_COMMS};
	struct pages pages = PAGES(client, &request, comms);
	const struct comms_reply *page = &pages.received.reply.comms;

	pages_for_each (&pages, page, item)
		pages.r = show_comm(item, fn, data);
	return pages.r;
}

static int show_group(const struct group_item *item, fsdp_group_fn *fn,
		      void *data)
{
	struct fsdp_group_entry entry = {
		.struct_size = sizeof(entry),
		.comm = item->comm,
		.name = item->name,
		.n_params = item->n_params,
		.n_gather_buckets = item->n_gather_buckets,
		.n_reduce_buckets = item->n_reduce_buckets,
		.step = item->step,
		.hash = item->hash,
		.shards_bytes = item->shards_bytes,
		.full_bytes = item->full_bytes,
		.is_unsharded = item->is_unsharded,
		.n_gathers = item->n_gathers,
		.n_reductions = item->n_reductions,
	};

	return fn(&entry, data);
}

int fsdp_groups(struct fsdp_client *client, const char *comm, fsdp_group_fn *fn,
		void *data)
{
	struct request request = {
		.kind = MESSAGE_GROUPS,
		.groups = {.comm = comm ? comm : ""},
	};
	struct pages pages = PAGES(client, &request, groups);
	const struct groups_reply *page = &pages.received.reply.groups;

	pages_for_each (&pages, page, item)
		pages.r = show_group(item, fn, data);
	return pages.r;
}

static int show_plan(const struct group_plan_reply *plan,
		     const struct plan_item *item, fsdp_plan_fn *fn, void *data)
{
	struct fsdp_plan_entry entry = {
		.struct_size = sizeof(entry),
		.name = item->name,
		.dtype = (enum fsdp_dtype)item->type.dtype,
		.full_dtype = (enum fsdp_dtype)item->full_dtype,
		.input_dtype = (enum fsdp_dtype)item->input_dtype,
		.reduce_dtype = (enum fsdp_dtype)item->reduce_dtype,
		.n_dims = item->type.n_dims,
		.shard_dim = item->shard_dim,
		.gather_bucket = item->gather_bucket,
		.reduce_bucket = item->reduce_bucket,
		.shard_offset = item->shard_offset,
		.shard_stride = item->shard_stride,
		.full_offset = item->full_offset,
		.input_offset = item->input_offset,
		.grad_offset = item->grad_offset,
		.chunk_bytes = item->chunk_bytes,
		.hash = plan->hash,
		.n_shards = plan->n_shards,
		.n_replicas = plan->n_replicas,
		.layout = (enum fsdp_layout)plan->layout,
		.is_in_place = plan->is_in_place,
	};

	memcpy(entry.shape, item->type.shape, sizeof(entry.shape));
	return fn(&entry, data);
}

int fsdp_group_plan(struct fsdp_client *client, const char *comm,
		    const char *group, fsdp_plan_fn *fn, void *data)
{
	struct request request = {
		.kind = MESSAGE_GROUP_PLAN,
		.group_plan = {.comm = comm, .group = group},
	};
	struct pages pages = PAGES(client, &request, group_plan);
	const struct group_plan_reply *page = &pages.received.reply.group_plan;

	pages_for_each (&pages, page, item)
		pages.r = show_plan(page, item, fn, data);
	return pages.r;
}
