/*
 * A rank's registrations come in the common order, like its unshards: its next
 * one is the first group of the list that it has not requested. If its request
 * is for another group, or is invalid, the registration cannot be completed for
 * any rank, so the group is withdrawn. It stays in the list until every rank
 * has got the cause, so that a registration ends in the same way for all ranks.
 */
#include "broker/comm/group_register.h"
#include "broker/comm/group.h"
#include "broker/engine/engine.h"
#include "broker/tensor/store.h"
#include "proto/error.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* --- creation ------------------------------------------------------------ */

static int measure(const struct group_spec *spec, size_t *ret,
		   struct error *err)
{
	uint8_t *bytes;
	int r;

	r = group_spec_encode(spec, &bytes, ret, err);
	if (r == 0)
		free(bytes);
	return r;
}

static int charge(struct group *group, struct error *err)
{
	struct comm *comm = group->comm;
	struct accounts *accounts = &comm->comms->store->base->accounts;
	uint32_t uid =
		catalog_comm(&comm->comms->store->catalog, comm->record)->uid;
	struct account *account = accounts_get(accounts, uid);
	size_t spec_size;
	uint64_t n;
	int r;

	if (!account)
		return error_nomem(err, "uid %u", uid);
	r = measure(&group->spec, &spec_size, err);
	if (r < 0)
		return r;
	n = group_record_charge(spec_size);
	r = account_charge(accounts, account, ACCOUNT_GROUPS, n, err);
	if (r < 0)
		return r;
	group->n_charged = n;
	group->charged_uid = uid;
	return 0;
}

/* Take over shards of an earlier run, if the group is the same. */
static int take_kept(struct group *group, struct error *err)
{
	const struct comms *comms = group->comm->comms;
	const struct group_record *record =
		catalog_group(&comms->store->catalog, group->record);
	struct group_spec kept;
	int r;

	r = group_spec_read(comms, group->record, &kept, err);
	if (r < 0)
		return error_wrap(err, r, "cannot read the kept group");
	r = group_spec_compare(&group->spec, &kept, "the group that is kept",
			       err);
	group_spec_deinit(&kept);
	if (r == 0 && group->plan.hash != record->plan_hash)
		r = error_set(
			err, -EINVAL,
			"this broker computes a different layout from that of "
			"its kept memory (remove the communicator first)");
	if (r < 0)
		return error_wrap(
			err, r,
			"it is kept with a different description (register the "
			"same one, or remove the communicator first)");
	group->side = record->side;
	group->step = record->step;
	return 0;
}

static struct group_mesh mesh_of(const struct comm *comm)
{
	return (struct group_mesh){
		.n_shards = comm->n_shards,
		.n_replicas = comm->n_world / comm->n_shards,
		.is_per_rank = comm->is_on_devices,
	};
}

/* Decide where shards and gradients are; offloaded ones are in host memory. */
static int choose_place(struct group *group, struct error *err)
{
	bool is_offloaded = group->plan.policy.is_offloaded;

	if (is_offloaded && group->comm->asked.executor != COMM_EXECUTOR_RANK)
		return error_set(err, -EINVAL,
				 "fsdp-worker cannot offload; set offload only "
				 "with the executor FSDP_EXECUTOR_RANK");
	for (uint32_t i = 0; i < 2; i++)
		group->shards[i].is_offloaded = is_offloaded;
	group->grads.is_offloaded = is_offloaded;
	group->partial.is_offloaded = is_offloaded;
	return 0;
}

/* Do everything in the creation of a group that can fail. */
static int set_up(struct group *group, const struct group_request *request,
		  struct error *err)
{
	struct comm *comm = group->comm;
	struct comms *comms = comm->comms;
	int r;

	r = group_spec_copy(request, &group->spec, err);
	if (r < 0)
		return r;
	r = group_spec_plan(&group->spec, mesh_of(comm), &group->plan, err);
	if (r < 0)
		return r;
	r = choose_place(group, err);
	if (r < 0)
		return r;
	group->record = group_record_find(comms, comm->record, group->name);
	r = group->record ? take_kept(group, err) : charge(group, err);
	/* Ranks that do everything themselves give the engine no jobs. */
	if (r < 0 || comm->is_by_ranks || comm->direct == COMM_DIRECT_ALL)
		return r;
	return engine_add_plan(comms->engine, &group->plan, &group->engine_plan,
			       err);
}

static int check_number(const struct comm *comm, struct error *err)
{
	const struct comm_record *record =
		catalog_comm(&comm->comms->store->catalog, comm->record);

	if (comm->n_groups < COMM_MAX_GROUPS &&
	    record->n_groups < COMM_MAX_GROUPS)
		return 0;
	return error_set(err, -ENOSPC,
			 "communicator '%s' has %d groups, which is the limit; "
			 "make fewer, larger ones",
			 comm->name, COMM_MAX_GROUPS);
}

/* Make a group. If its request is invalid, it is made and withdrawn, so that
 * the other ranks learn the cause. */
static int group_new(struct comm *comm, uint32_t rank,
		     const struct group_request *request, struct group **ret,
		     struct error *err)
{
	struct catalog *catalog = &comm->comms->store->catalog;
	struct error cause = ERROR_NULL, why = ERROR_NULL;
	char name[RANK_TEXT];
	struct group *group = NULL;
	int r;

	r = check_number(comm, err);
	if (r < 0)
		return r;
	r = group_make(comm, request->name, catalog->header->next_comm_id,
		       &group, err);
	if (r < 0)
		return r;
	catalog_set(catalog, catalog->header->next_comm_id, group->id + 1);
	r = set_up(group, request, &cause);
	*ret = group;
	if (r == 0)
		return 0;
	comm_rank_name(comm, rank, name);
	error_set(&why, r,
		  "cannot register group '%s': %s gave an invalid description: "
		  "%s",
		  group->name, name, cause.msg);
	group_withdraw(group, &why);
	return error_set(err, r, "cannot register group '%s': %s", group->name,
			 cause.msg);
}

/* A group of an earlier run needs no plan at the engine, because its ranks do
 * the work. */
int group_revive(struct comm *comm, uint32_t record, struct error *err)
{
	const struct comms *comms = comm->comms;
	const struct group_record *kept =
		catalog_group(&comms->store->catalog, record);
	struct group *group;
	int r;

	r = group_make(comm, group_spec_name(comms, record), kept->run.id,
		       &group, err);
	if (r == 0)
		r = group_spec_read(comms, record, &group->spec, err);
	if (r == 0)
		r = group_spec_plan(&group->spec, mesh_of(comm), &group->plan,
				    err);
	if (r < 0)
		return r;
	if (group->plan.hash != kept->plan_hash)
		return error_set(err, -EINVAL,
				 "this broker computes a different layout of "
				 "'%s' from that of its kept memory",
				 group->name);
	group->record = record;
	group->side = kept->side;
	group->step = kept->step;
	group->registered = comm_all(comm);
	group->answered = kept->run.answered;
	group->is_ready = true;
	group->index = kept->run.index;
	comm->n_ready++;
	comm->n_registering--;
	return 0;
}

/* --- registering --------------------------------------------------------- */

/* Returns the group that the rank waits for or has, unless it was told that the
 * group is withdrawn, or NULL. */
static struct group *find_own(const struct comm *comm, uint32_t rank,
			      const char *name)
{
	struct group *group = comm->first_group;

	for (; group; group = group->next) {
		if (!(group->registered & rank_bit(rank)) ||
		    (group_is_withdrawn(group) &&
		     (group->answered & rank_bit(rank))))
			continue;
		if (!strcmp(group->name, name))
			return group;
	}
	return NULL;
}

/* Returns the first group that others have requested and the rank has not, or
 * NULL. */
static struct group *find_next(const struct comm *comm, uint32_t rank)
{
	struct group *group = comm->first_group;

	while (group && (group->registered & rank_bit(rank)))
		group = group->next;
	return group;
}

/* Refuse a request for a different group than the one that others wait for. */
static int refuse_order(struct group *group, uint32_t rank, const char *name,
			struct error *err)
{
	struct comm *comm = group->comm;
	struct error why = ERROR_NULL;
	char mine[RANK_TEXT], theirs[RANK_TEXT];

	comm_rank_name(comm, rank, mine);
	comm_rank_name(comm, rank_first(group->registered), theirs);
	error_set(&why, -EINVAL,
		  "%s registers group '%s', but %s registers '%s'; all must "
		  "register the same groups in the same order",
		  mine, name, theirs, group->name);
	group_withdraw(group, &why);
	return error_set(err, why.code, "%s", why.msg);
}

/* Refuse a request that is invalid or differs from that of other ranks. `mine`
 * is the message for the rank, and `why` that for the others. */
static int refuse_group(struct group *group, const struct error *mine,
			struct error *why, struct error *err)
{
	error_wrap(why, why->code, "cannot register group '%s'", group->name);
	group_withdraw(group, why);
	return error_set(err, mine->code, "cannot register group '%s': %s",
			 group->name, mine->msg);
}

/* Compare the rank's request with the group that others wait for. */
static int compare(struct group *group, uint32_t rank,
		   const struct group_spec *spec, struct error *err)
{
	struct comm *comm = group->comm;
	struct error mine = ERROR_NULL, why = ERROR_NULL;
	char mine_name[RANK_TEXT], name[RANK_TEXT];
	struct plan plan;
	int r;

	comm_rank_name(comm, rank, mine_name);
	r = group_spec_plan(spec, mesh_of(comm), &plan, &mine);
	if (r < 0) {
		error_set(&why, r, "%s gave an invalid description: %s",
			  mine_name, mine.msg);
		return refuse_group(group, &mine, &why, err);
	}
	if (plan.hash == group->plan.hash) {
		plan_deinit(&plan);
		return 0;
	}
	plan_deinit(&plan);
	comm_rank_name(comm, rank_first(group->registered), name);
	r = group_spec_compare(spec, &group->spec, name, &mine);
	if (r == 0)
		r = error_set(&mine, -EINVAL, "the plan differs from %s's",
			      name);
	if (group_spec_compare(&group->spec, spec, mine_name, &why) == 0)
		error_set(&why, r, "the plan differs from %s's", mine_name);
	return refuse_group(group, &mine, &why, err);
}

static int join_group(struct group *group, uint32_t rank,
		      const struct group_request *request, struct error *err)
{
	struct group_spec spec;
	int r;

	if (strcmp(group->name, request->name))
		return refuse_order(group, rank, request->name, err);
	r = group_spec_borrow(request, &spec, err);
	if (r < 0)
		return r;
	r = compare(group, rank, &spec, err);
	group_spec_deinit(&spec);
	return r;
}

static int begin(struct comm *comm, uint32_t rank,
		 const struct group_request *request, struct group **ret,
		 struct error *err)
{
	struct group *group = find_next(comm, rank);
	int r = 0;

	if (!group)
		r = group_new(comm, rank, request, &group, err);
	else if (!group_is_withdrawn(group))
		r = join_group(group, rank, request, err);
	if (r < 0 && (!group || !group_is_withdrawn(group)))
		return r;
	group->registered |= rank_bit(rank);
	if (r < 0) {
		group->answered |= rank_bit(rank);
		return r;
	}
	if (group->registered == comm_all(comm))
		group->since_ms = now_ms();
	comm_wake(comm);
	*ret = group;
	return 0;
}

static int look(struct group *group, uint32_t rank, struct error *err)
{
	if (group_is_withdrawn(group)) {
		group->answered |= rank_bit(rank);
		comm_wake(group->comm);
		return error_set(err, group->refusal.code, "%s",
				 group->refusal.msg);
	}
	return group->is_ready ? GROUP_READY : GROUP_WAIT;
}

int group_register(struct comm *comm, uint32_t rank,
		   const struct group_request *request, struct group **ret,
		   struct error *err)
{
	struct group *group = find_own(comm, rank, request->name);
	char name[RANK_TEXT];
	int r;

	if (group && (group->answered & rank_bit(rank))) {
		comm_rank_name(comm, rank, name);
		return error_set(err, -EEXIST,
				 "%s has registered group '%s' already", name,
				 group->name);
	}
	if (!group) {
		r = comm_check_not_committing(comm, rank, err);
		if (r < 0)
			return r;
		r = begin(comm, rank, request, &group, err);
		if (r < 0)
			return r;
	}
	*ret = group;
	return look(group, rank, err);
}
