/*
 * Requests that inspect collectives: comms, groups and group_plan, limited to
 * those that the session may read. All are paged.
 *
 * Communicators are listed by their records, followed by failed runs, which no
 * longer have one. Plans are made again for each request, since these requests
 * are rare.
 */
#include "broker/broker.h"
#include "broker/comm/comm.h"
#include "broker/comm/comm_record.h"
#include "broker/comm/gather.h"
#include "broker/comm/gather_look.h"
#include "broker/comm/group.h"
#include "broker/comm/run_board.h"
#include "broker/verbs/verbs.h"
#include "proto/error.h"
#include "proto/name.h"
#include <errno.h>
#include <string.h>

/* The number of items, with notes and names, that fit into a frame. */
#define PAGE_COMMS    48
#define PAGE_GROUPS   96
#define MAX_PAGE_SIZE 56320
/* An upper bound of one parameter without its name. */
#define PLAN_ITEM_SIZE 256
/* The numbers of parameters that one request plans and of records that it
 * visits. */
#define MAX_PLANNED  4096
#define MAX_EXAMINED 4096
/* This bit of a cursor of communicators says that all records were listed. */
#define CURSOR_FAILED (UINT64_C(1) << 63)

static bool may_read(const struct verb_call *call,
		     const struct access_class *access)
{
	return access_is_allowed(&call->session->holdings.credentials, access,
				 ACCESS_READ);
}

static struct comm *find_run(const struct broker *broker, uint32_t record)
{
	struct comm *comm = broker->comms.first;

	while (comm && comm->record != record)
		comm = comm->next;
	return comm;
}

/* --- comms --------------------------------------------------------------- */

static uint64_t count_bytes(const struct catalog *catalog, uint32_t record)
{
	uint32_t group = catalog_comm(catalog, record)->first_group;
	const struct group_record *kept;
	uint64_t n_bytes = 0;
	uint32_t slot;

	for (; group; group = kept->next) {
		kept = catalog_group(catalog, group);
		for (uint32_t i = 0; i < 2 * MESSAGE_MAX_RANKS; i++) {
			slot = kept->slots[i / MESSAGE_MAX_RANKS]
					  [i % MESSAGE_MAX_RANKS];
			if (slot)
				n_bytes += catalog_slot(catalog, slot)->size;
		}
	}
	return n_bytes;
}

static void fill_run(const struct comm *comm, struct comm_item *ret)
{
	struct limiter_state state;

	limiter_state(comm->limiter, &state);
	gathers_look_up(comm, &state);
	ret->comm = comm->id;
	ret->state = comm->state;
	ret->n_joined = comm->n_joined - comm->n_left;
	ret->n_in_flight = state.n_in_flight;
	ret->n_limited = state.n_waiting;
	ret->bytes_in_flight = state.bytes_in_flight;
	ret->n_local = comm->n_ranks;
	ret->is_on_devices = comm->is_on_devices;
	ret->executor = comm->asked.executor;
	ret->note = comm->state == COMM_FAILED ? comm->failure.msg : "";
}

static void fill_record(const struct broker *broker, uint32_t record,
			char *name, struct comm_item *ret)
{
	const struct catalog *catalog = &broker->store.catalog;
	const struct comm_record *kept = catalog_comm(catalog, record);
	const struct comm *comm = find_run(broker, record);
	uint64_t now = now_ms();

	comm_record_name(&broker->comms, record, name);
	*ret = (struct comm_item){
		.name = name,
		.uid = kept->uid,
		.state = COMM_KEPT,
		.n_ranks = kept->n_ranks,
		.n_shards = kept->n_shards,
		.n_groups = kept->n_groups,
		.step = kept->step,
		.n_bytes = count_bytes(catalog, record),
		.n_local = kept->n_local,
		.is_on_devices = kept->first_group &&
				 !device_uuid_is_host(&kept->places[0].device),
		.note = "",
	};
	if (comm)
		fill_run(comm, ret);
	else
		ret->ttl_left_ms =
			kept->deadline_ms > now ? kept->deadline_ms - now : 1;
}

static void fill_failed(const struct comm *comm, struct comm_item *ret)
{
	*ret = (struct comm_item){
		.name = comm->name,
		.uid = comm->uid,
		.n_ranks = comm->n_world,
		.n_shards = comm->n_shards,
		.step = comm->step,
	};
	fill_run(comm, ret);
}

/* List communicators by their records, from record `from` on. Returns false if
 * the page is full. */
static bool list_records(struct verb_call *call, uint64_t from, char *names)
{
	const struct catalog *catalog = &call->broker->store.catalog;
	struct comms_reply *reply = &call->reply->comms;
	const struct comm_record *record;

	for (; from <= catalog_n_touched(catalog, SECTION_COMM); from++) {
		record = catalog_comm(catalog, (uint32_t)from);
		if (!record->id || !may_read(call, &record->access))
			continue;
		if (reply->n_items == PAGE_COMMS) {
			reply->next_cursor = from;
			return false;
		}
		fill_record(call->broker, (uint32_t)from,
			    names + (size_t)reply->n_items *
					    (NAME_MAX_SIZE + 1),
			    &reply->items[reply->n_items]);
		reply->n_items++;
	}
	return true;
}

/* List the failed runs, the newest one first. */
static void list_failed(struct verb_call *call, uint64_t newest)
{
	struct comms_reply *reply = &call->reply->comms;
	const struct comm *comm = call->broker->comms.first;

	for (; comm; comm = comm->next) {
		if (comm->record || comm->id > newest ||
		    !may_read(call, &comm->access))
			continue;
		if (reply->n_items == PAGE_COMMS) {
			reply->next_cursor = CURSOR_FAILED | comm->id;
			return;
		}
		fill_failed(comm, &reply->items[reply->n_items++]);
	}
}

int verb_comms(struct verb_call *call, struct error *err)
{
	struct comms_reply *reply = &call->reply->comms;
	uint64_t cursor = call->request->comms.cursor;
	char *names =
		verb_scratch(call, (size_t)PAGE_COMMS * (NAME_MAX_SIZE + 1));

	reply->items = verb_scratch(call, PAGE_COMMS * sizeof(*reply->items));
	if (!reply->items || !names)
		return error_nomem(err, "communicators");
	if (cursor & CURSOR_FAILED)
		list_failed(call, cursor & ~CURSOR_FAILED);
	else if (list_records(call, cursor ? cursor : 1, names))
		list_failed(call, UINT64_MAX);
	return VERB_DONE;
}

/* --- plans of records ---------------------------------------------------- */

struct look {
	struct group_spec spec;
	struct plan plan;
};

static void look_deinit(struct look *look)
{
	plan_deinit(&look->plan);
	group_spec_deinit(&look->spec);
}

static int look_init(struct look *look, const struct broker *broker,
		     uint32_t record, struct error *err)
{
	const struct catalog *catalog = &broker->store.catalog;
	const struct comm_record *comm =
		catalog_comm(catalog, catalog_group(catalog, record)->comm);
	struct group_mesh mesh = {
		.n_shards = comm->n_shards,
		.n_replicas = comm->n_ranks / comm->n_shards,
		.is_per_rank = !device_uuid_is_host(&comm->places[0].device),
	};
	int r;

	r = group_spec_read(&broker->comms, record, &look->spec, err);
	if (r < 0)
		return r;
	r = group_spec_plan(&look->spec, mesh, &look->plan, err);
	if (r < 0)
		group_spec_deinit(&look->spec);
	return r;
}

/* --- groups -------------------------------------------------------------- */

static void fill_running(const struct broker *broker, uint32_t comm_record,
			 uint32_t record, struct group_item *ret)
{
	const struct comm *comm = find_run(broker, comm_record);
	const struct group *group = comm ? comm->first_group : NULL;

	while (group && group->record != record)
		group = group->next;
	if (!group)
		return;
	ret->is_unsharded =
		group_is_unsharded(group) || gather_is_on_board(group);
	ret->n_gathers += group->n_gathers + group->n_gathered;
	ret->n_reductions += group->n_reductions;
}

/* Fill in an item. `names` has space for two names. */
static int fill_group(const struct broker *broker, uint32_t record, char *names,
		      struct group_item *ret, uint32_t *ret_n_params,
		      struct error *err)
{
	const struct group_record *kept =
		catalog_group(&broker->store.catalog, record);
	char *name = names + NAME_MAX_SIZE + 1;
	struct look look;
	uint64_t n;
	int r;

	r = look_init(&look, broker, record, err);
	if (r < 0)
		return r;
	n = look.plan.n_replicas;
	comm_record_name(&broker->comms, kept->comm, names);
	strcpy(name, look.spec.request.group.name);
	*ret = (struct group_item){
		.comm = names,
		.name = name,
		.n_params = look.plan.n_entries,
		.n_gather_buckets = look.plan.n_gather_buckets,
		.n_reduce_buckets = look.plan.n_reduce_buckets,
		.step = kept->step,
		.hash = kept->plan_hash,
		.n_gathers = kept->n_gathers,
		.n_reductions = kept->n_reductions,
		.shards_bytes = 2 * n * look.plan.shards_size,
		.full_bytes =
			look.plan.is_in_place ? 0 : n * look.plan.full_size,
	};
	*ret_n_params = look.plan.n_entries;
	look_deinit(&look);
	fill_running(broker, kept->comm, record, ret);
	return 0;
}

/* Returns whether the group is listed. `comm` 0 stands for all
 * communicators. */
static bool is_wanted(const struct verb_call *call, uint32_t record,
		      uint32_t comm)
{
	const struct catalog *catalog = &call->broker->store.catalog;
	const struct group_record *kept = catalog_group(catalog, record);

	return kept->id && (!comm || kept->comm == comm) &&
	       may_read(call, &catalog_comm(catalog, kept->comm)->access);
}

/* Find a communicator's record by name. As with tensors, one that the session
 * may not read is refused here, and omitted from lists. */
static int find_comm(const struct verb_call *call, const char *name,
		     uint32_t *ret, struct error *err)
{
	const struct catalog *catalog = &call->broker->store.catalog;
	uint32_t record = comm_record_find(&call->broker->comms, name);

	if (!record)
		return error_set(err, -ENOENT, "there is no communicator '%s'",
				 name);
	if (!may_read(call, &catalog_comm(catalog, record)->access))
		return error_set(err, -EACCES,
				 "communicator '%s' is not readable for uid %u",
				 name, session_record(call->session)->uid);
	*ret = record;
	return 0;
}

static int list_groups(struct verb_call *call, uint32_t comm, char *names,
		       struct error *err)
{
	struct groups_reply *reply = &call->reply->groups;
	uint32_t last =
		catalog_n_touched(&call->broker->store.catalog, SECTION_GROUP);
	uint64_t cursor = call->request->groups.cursor;
	uint64_t end = (cursor ? cursor : 1) + MAX_EXAMINED;
	uint32_t n_planned = 0, n;
	int r;

	for (cursor = cursor ? cursor : 1; cursor <= last; cursor++) {
		if (cursor == end || reply->n_items == PAGE_GROUPS ||
		    n_planned >= MAX_PLANNED) {
			reply->next_cursor = cursor;
			return VERB_DONE;
		}
		if (!is_wanted(call, (uint32_t)cursor, comm))
			continue;
		r = fill_group(call->broker, (uint32_t)cursor,
			       names + (size_t)reply->n_items * 2 *
					       (NAME_MAX_SIZE + 1),
			       &reply->items[reply->n_items], &n, err);
		if (r < 0)
			return r;
		reply->n_items++;
		n_planned += n;
	}
	return VERB_DONE;
}

int verb_groups(struct verb_call *call, struct error *err)
{
	const struct groups_request *request = &call->request->groups;
	struct groups_reply *reply = &call->reply->groups;
	char *names = verb_scratch(call, (size_t)PAGE_GROUPS * 2 *
						 (NAME_MAX_SIZE + 1));
	uint32_t comm = 0;
	int r;

	run_boards_count(&call->broker->comms);
	reply->items = verb_scratch(call, PAGE_GROUPS * sizeof(*reply->items));
	if (!reply->items || !names)
		return error_nomem(err, "groups");
	if (*request->comm) {
		r = find_comm(call, request->comm, &comm, err);
		if (r < 0)
			return r;
	}
	return list_groups(call, comm, names, err);
}

/* --- group_plan ---------------------------------------------------------- */

static void fill_entry(const struct plan_entry *from,
		       const struct plan_param *param, const char *name,
		       struct plan_item *ret)
{
	*ret = (struct plan_item){
		.name = name,
		.type = param->type,
		.shard_dim = from->shard.dim,
		.full_dtype = from->full_dtype,
		.input_dtype = from->input_dtype,
		.reduce_dtype = from->reduce_dtype,
		.gather_bucket = from->gather_bucket,
		.reduce_bucket = from->reduce_bucket,
		.shard_offset = from->shard_offset,
		.shard_stride = from->shard_stride,
		.full_offset = from->full_offset,
		.input_offset = from->input_offset,
		.grad_offset = from->grad_offset,
		.chunk_bytes =
			from->shard.chunk_numel * dtype_size(from->dtype),
	};
}

static int list_entries(struct verb_call *call, const struct look *look,
			struct error *err)
{
	struct group_plan_reply *reply = &call->reply->group_plan;
	uint64_t i = call->request->group_plan.cursor;
	size_t size = 0, name_size;
	char *name;

	reply->items =
		verb_scratch(call, MESSAGE_MAX_ITEMS * sizeof(*reply->items));
	if (!reply->items)
		return error_nomem(err, "a plan");
	for (; i < look->plan.n_entries; i++) {
		if (reply->n_items == MESSAGE_MAX_ITEMS ||
		    size > MAX_PAGE_SIZE) {
			reply->next_cursor = i;
			return VERB_DONE;
		}
		name_size = strlen(look->spec.params[i].name) + 1;
		name = verb_scratch(call, name_size);
		if (!name)
			return error_nomem(err, "a plan");
		memcpy(name, look->spec.params[i].name, name_size);
		fill_entry(&look->plan.entries[i], &look->spec.params[i], name,
			   &reply->items[reply->n_items++]);
		size += PLAN_ITEM_SIZE + name_size;
	}
	return VERB_DONE;
}

int verb_group_plan(struct verb_call *call, struct error *err)
{
	const struct group_plan_request *request = &call->request->group_plan;
	struct group_plan_reply *reply = &call->reply->group_plan;
	uint32_t comm, record;
	struct look look;
	int r;

	r = find_comm(call, request->comm, &comm, err);
	if (r < 0)
		return r;
	record = group_record_find(&call->broker->comms, comm, request->group);
	if (!record)
		return error_set(err, -ENOENT,
				 "communicator '%s' has no group '%s'",
				 request->comm, request->group);
	r = look_init(&look, call->broker, record, err);
	if (r < 0)
		return r;
	reply->hash = look.plan.hash;
	reply->n_shards = look.plan.n_shards;
	reply->n_replicas = look.plan.n_replicas;
	reply->layout = look.plan.policy.layout;
	reply->is_in_place = look.plan.is_in_place;
	r = list_entries(call, &look, err);
	look_deinit(&look);
	return r;
}
