/*
 * Registering groups, and their memory.
 *
 * A rank's registrations come in the common order, as its unshards do: its next
 * one is the first group of the list that it has not requested. If its request
 * is for another group, or is invalid, the registration cannot be completed for
 * any rank, so the group is withdrawn. It stays in the list until every rank
 * has got the cause; a registration thus ends alike for all ranks.
 */
#include "broker/comm/group.h"
#include "broker/broker.h"
#include "broker/comm/comm_record.h"
#include "broker/tensor/slot.h"
#include "broker/tensor/storage.h"
#include "proto/error.h"
#include "proto/point.h"
#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_withdrawn(const struct group *group)
{
	return group->refusal.code < 0;
}

static bool is_registering(const struct group *group)
{
	return !group->is_ready && !is_withdrawn(group);
}

/* --- lists and ids ------------------------------------------------------- */

static struct group **id_bucket(struct comms *comms, uint64_t id)
{
	return &comms->groups[id % COMM_GROUP_BUCKETS];
}

static void link_group(struct comm *comm, struct group *group)
{
	struct group **bucket = id_bucket(&comm->broker->comms, group->id);

	group->id_next = *bucket;
	*bucket = group;
	if (comm->last_group)
		comm->last_group->next = group;
	else
		comm->first_group = group;
	comm->last_group = group;
	comm->n_groups++;
}

static void unlink_group(struct group *group)
{
	struct comm *comm = group->comm;
	struct group **at = id_bucket(&comm->broker->comms, group->id);
	struct group *prev = NULL, *other = comm->first_group;

	while (*at != group)
		at = &(*at)->id_next;
	*at = group->id_next;
	for (; other != group; other = other->next)
		prev = other;
	if (prev)
		prev->next = group->next;
	else
		comm->first_group = group->next;
	if (comm->last_group == group)
		comm->last_group = prev;
	comm->n_groups--;
}

int group_find(const struct session *session, uint64_t id, struct group **ret,
	       uint32_t *ret_rank, struct error *err)
{
	struct group *group = *id_bucket(&session->broker->comms, id);
	struct comm *comm;
	int r;

	while (group && group->id != id)
		group = group->id_next;
	if (!group)
		return error_set(err, -ECONNABORTED,
				 "group %llu is of no communicator that runs "
				 "(it has ended, or the broker was restarted); "
				 "join and register again",
				 (unsigned long long)id);
	r = comm_find(session, group->comm->id, &comm, ret_rank, err);
	if (r < 0)
		return r;
	*ret = group;
	return 0;
}

/* --- ends ---------------------------------------------------------------- */

static void refund(struct group *group)
{
	struct comm *comm = group->comm;
	struct account *account;

	if (!group->n_charged)
		return;
	account = accounts_get(&comm->broker->accounts, group->charged_uid);
	assert(account); /* it was charged, so it exists */
	account_refund(account, ACCOUNT_GROUPS, group->n_charged);
	group->n_charged = 0;
}

/* Release the memory that belongs to the run, and the plan at the engine.
 * Gathers and reductions were freed before. */
static void end(struct group *group)
{
	struct broker *broker = group->comm->broker;

	for (uint32_t i = 0; i < 2; i++) {
		if (group->is_fresh[i])
			rank_memory_unpin(group->comm, &group->shards[i]);
		group->is_fresh[i] = false;
	}
	rank_memory_unpin(group->comm, &group->grads);
	rank_memory_unpin(group->comm, &group->partial);
	if (group->engine_plan)
		engine_remove_plan(&broker->engine, group->engine_plan);
	group->engine_plan = 0;
	/* It is no longer charged, so free what takes memory. */
	plan_deinit(&group->plan);
	group_spec_deinit(&group->spec);
	refund(group);
}

static void group_free(struct group *group)
{
	unlink_group(group);
	free(group);
}

void groups_end(struct comm *comm)
{
	struct group *group = comm->first_group;

	for (; group; group = group->next)
		end(group);
}

void groups_free(struct comm *comm)
{
	groups_end(comm);
	while (comm->first_group)
		group_free(comm->first_group);
}

/* Withdraw a registration, undoing all its changes. Waiting ranks get the cause
 * when their requests are rerun, the others when they come. */
static void withdraw(struct group *group, const struct error *why)
{
	assert(is_registering(group) && why->code < 0);
	group->refusal = *why;
	group->comm->n_registering--;
	end(group);
	comm_wake(group->comm);
}

/* Is it withdrawn, and has every rank got the cause or left? */
static bool is_told(const struct group *group)
{
	const struct comm *comm = group->comm;
	uint64_t waiting = comm_all(comm) & ~group->answered;

	if (!is_withdrawn(group))
		return false;
	for (uint32_t i = 0; i < comm->n_ranks; i++) {
		if (comm->ranks[i].has_left)
			waiting &= ~rank_bit(i);
	}
	return !waiting;
}

static void free_told(struct comm *comm)
{
	struct group *group = comm->first_group, *next;

	for (; group; group = next) {
		next = group->next;
		if (is_told(group))
			group_free(group);
	}
}

/* --- creation ------------------------------------------------------------ */

static int charge(struct group *group, size_t spec_size, struct error *err)
{
	struct comm *comm = group->comm;
	struct accounts *accounts = &comm->broker->accounts;
	uint32_t uid = catalog_comm(&comm->broker->catalog, comm->record)->uid;
	struct account *account = accounts_get(accounts, uid);
	uint64_t n = group_record_charge(spec_size);
	int r;

	if (!account)
		return error_set(err, -ENOMEM, "no memory for uid %u", uid);
	r = account_charge(accounts, account, ACCOUNT_GROUPS, n, err);
	if (r < 0)
		return r;
	group->n_charged = n;
	group->charged_uid = uid;
	return 0;
}

/* Shards are kept from an earlier run: is it the same group? */
static int take_kept(struct group *group, struct error *err)
{
	const struct broker *broker = group->comm->broker;
	const struct group_record *record =
		catalog_group(&broker->catalog, group->record);
	struct group_spec kept;
	int r;

	r = group_spec_read(broker, group->record, &kept, err);
	if (r < 0)
		return error_wrap(err, r, "the kept group");
	r = group_spec_compare(&group->spec, &kept, "the group that is kept",
			       err);
	group_spec_deinit(&kept);
	if (r == 0 && group->plan.hash != record->plan_hash)
		r = error_set(err, -EINVAL,
			      "this broker would lay it out in another way "
			      "than the one that made its memory");
	if (r < 0)
		return error_wrap(err, r,
				  "register it as it is kept, or remove the "
				  "communicator first");
	group->side = record->side;
	group->step = record->step;
	return 0;
}

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

static struct group_mesh mesh_of(const struct comm *comm)
{
	return (struct group_mesh){
		.n_shards = comm->n_shards,
		.n_replicas = comm->n_world / comm->n_shards,
		.is_per_rank = comm->is_on_devices,
	};
}

/* Offloaded shards and gradients are in host memory. */
static int choose_place(struct group *group, struct error *err)
{
	bool is_offloaded = group->plan.policy.is_offloaded;

	if (is_offloaded && group->comm->asked.home != COMM_HOME_RANK)
		return error_set(err, -EINVAL,
				 "fsdp-worker copies no shards to devices; "
				 "offload is for ranks that do the work "
				 "themselves (home rank)");
	for (uint32_t i = 0; i < 2; i++)
		group->shards[i].is_offloaded = is_offloaded;
	group->grads.is_offloaded = is_offloaded;
	group->partial.is_offloaded = is_offloaded;
	return 0;
}

/* Do everything that can fail. */
static int set_up(struct group *group, const struct group_request *request,
		  struct error *err)
{
	struct comm *comm = group->comm;
	struct broker *broker = comm->broker;
	size_t size = 0;
	int r;

	r = group_spec_copy(request, &group->spec, err);
	if (r == 0)
		r = group_spec_plan(&group->spec, mesh_of(comm), &group->plan,
				    err);
	if (r == 0)
		r = choose_place(group, err);
	if (r == 0)
		r = measure(&group->spec, &size, err);
	if (r < 0)
		return r;
	group->record = group_record_find(broker, comm->record, group->name);
	if (group->record)
		r = take_kept(group, err);
	else
		r = charge(group, size, err);
	if (r == 0 && !comm->is_by_ranks)
		r = engine_add_plan(&broker->engine, &group->plan,
				    &group->engine_plan, err);
	return r;
}

static int check_number(const struct comm *comm, struct error *err)
{
	const struct comm_record *record =
		catalog_comm(&comm->broker->catalog, comm->record);

	if (comm->n_groups < COMM_MAX_GROUPS &&
	    record->n_groups < COMM_MAX_GROUPS)
		return 0;
	return error_set(err, -ENOSPC,
			 "communicator '%s' has %d groups, which is the limit; "
			 "make fewer, larger ones",
			 comm->name, COMM_MAX_GROUPS);
}

static int make_group(struct comm *comm, const char *name, struct group **ret,
		      struct error *err)
{
	struct catalog *catalog = &comm->broker->catalog;
	struct group *group = calloc(1, sizeof(*group));

	if (!group)
		return error_set(err, -ENOMEM, "no memory for a group");
	snprintf(group->name, sizeof(group->name), "%s", name);
	group->comm = comm;
	group->since_ms = now_ms();
	group->id = catalog->header->next_comm_id;
	catalog_set(catalog, catalog->header->next_comm_id, group->id + 1);
	comm->n_registering++;
	link_group(comm, group);
	*ret = group;
	return 0;
}

/* Make a group. An invalid one is made withdrawn, so that the other ranks learn
 * of it. */
static int group_new(struct comm *comm, uint32_t rank,
		     const struct group_request *request, struct group **ret,
		     struct error *err)
{
	struct error cause = ERROR_NULL, why = ERROR_NULL;
	char name[RANK_TEXT];
	struct group *group = NULL;
	int r;

	r = check_number(comm, err);
	if (r == 0)
		r = make_group(comm, request->name, &group, err);
	if (r < 0)
		return r;
	r = set_up(group, request, &cause);
	*ret = group;
	if (r == 0)
		return 0;
	comm_rank_name(comm, rank, name, sizeof(name));
	error_set(&why, r,
		  "register group '%s': %s asks for what cannot be: %s",
		  group->name, name, cause.msg);
	withdraw(group, &why);
	return error_set(err, r, "register group '%s': %s", group->name,
			 cause.msg);
}

/* --- registering --------------------------------------------------------- */

/* The group that the rank waits for or has, unless it was told of
 * its withdrawal. */
static struct group *find_own(const struct comm *comm, uint32_t rank,
			      const char *name)
{
	struct group *group = comm->first_group;

	for (; group; group = group->next) {
		if (!(group->registered & rank_bit(rank)) ||
		    (is_withdrawn(group) && (group->answered & rank_bit(rank))))
			continue;
		if (!strcmp(group->name, name))
			return group;
	}
	return NULL;
}

/* The first group that others have requested and the rank has not. */
static struct group *find_next(const struct comm *comm, uint32_t rank)
{
	struct group *group = comm->first_group;

	while (group && (group->registered & rank_bit(rank)))
		group = group->next;
	return group;
}

/* The rank requests a different group than the one that others wait for. */
static int refuse_order(struct group *group, uint32_t rank, const char *name,
			struct error *err)
{
	struct comm *comm = group->comm;
	struct error why = ERROR_NULL;
	char mine[RANK_TEXT], theirs[RANK_TEXT];

	comm_rank_name(comm, rank, mine, sizeof(mine));
	comm_rank_name(comm, rank_first(group->registered), theirs,
		       sizeof(theirs));
	error_set(&why, -EINVAL,
		  "%s registers group '%s', but %s registers '%s'; all must "
		  "register the same groups in the same order",
		  mine, name, theirs, group->name);
	withdraw(group, &why);
	return error_set(err, why.code, "%s", why.msg);
}

/* The rank's request under this name is invalid or differs: `mine` is the
 * message for the rank, `why` that for the others. */
static int refuse_group(struct group *group, const struct error *mine,
			struct error *why, struct error *err)
{
	error_wrap(why, why->code, "register group '%s'", group->name);
	withdraw(group, why);
	return error_set(err, mine->code, "register group '%s': %s",
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

	comm_rank_name(comm, rank, mine_name, sizeof(mine_name));
	r = group_spec_plan(spec, mesh_of(comm), &plan, &mine);
	if (r < 0) {
		error_set(&why, r, "%s asks for what cannot be: %s", mine_name,
			  mine.msg);
		return refuse_group(group, &mine, &why, err);
	}
	if (plan.hash == group->plan.hash) {
		plan_deinit(&plan);
		return 0;
	}
	plan_deinit(&plan);
	comm_rank_name(comm, rank_first(group->registered), name, sizeof(name));
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
	else if (!is_withdrawn(group))
		r = join_group(group, rank, request, err);
	if (r < 0 && (!group || !is_withdrawn(group)))
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
	if (is_withdrawn(group)) {
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
		comm_rank_name(comm, rank, name, sizeof(name));
		return error_set(err, -EEXIST,
				 "%s has registered group '%s' already", name,
				 group->name);
	}
	if (!group) {
		r = comm_check_not_committing(comm, rank, err);
		if (r == 0)
			r = begin(comm, rank, request, &group, err);
		if (r < 0)
			return r;
	}
	*ret = group;
	return look(group, rank, err);
}

int groups_check_commit(const struct comm *comm, uint32_t rank,
			struct error *err)
{
	const struct group *group = comm->first_group;
	char mine[RANK_TEXT], theirs[RANK_TEXT];

	while (group && !is_registering(group))
		group = group->next;
	if (!group)
		return 0;
	comm_rank_name(comm, rank, mine, sizeof(mine));
	if (group->registered & rank_bit(rank))
		return error_set(err, -EBUSY,
				 "%s registers group '%s'; wait for it before "
				 "the commit",
				 mine, group->name);
	comm_rank_name(comm, rank_first(group->registered), theirs,
		       sizeof(theirs));
	return error_set(err, -EINVAL,
			 "%s commits, but the ranks' next step is to register "
			 "group '%s', which %s began",
			 mine, group->name, theirs);
}

/* --- memory -------------------------------------------------------------- */

uint64_t group_size(const struct group *group, uint64_t size)
{
	const struct plan *plan = &group->plan;

	return group->comm->is_on_devices ? size / plan->n_shards
					  : size * plan->n_replicas;
}

static bool is_any_held(const struct comm *comm, const uint32_t *slots)
{
	uint32_t i = 0;

	while (i < rank_memory_count(comm) &&
	       !slot_is_held(comm->broker, slots[i]))
		i++;
	return i < rank_memory_count(comm);
}

/* Take the kept shards. The side to be written is made again if a rank of an
 * earlier run might still write to it. */
static void take_shards(struct group *group)
{
	const struct comm *comm = group->comm;
	const struct group_record *record =
		catalog_group(&comm->broker->catalog, group->record);
	uint32_t next = !group->side;

	memcpy(group->shards[group->side].slots, record->slots[group->side],
	       sizeof(record->slots[0]));
	if (!group->is_fresh[next] && !is_any_held(comm, record->slots[next]))
		memcpy(group->shards[next].slots, record->slots[next],
		       sizeof(record->slots[0]));
}

static int make_shards(struct group *group, uint32_t side, struct error *err)
{
	struct rank_memory *shards = &group->shards[side];

	if (!group->is_fresh[side] && rank_memory_is_whole(group->comm, shards))
		return POOL_OK;
	group->is_fresh[side] = true;
	return rank_memory_make(group->comm,
				group_size(group, group->plan.shards_size),
				shards, err);
}

/* Returns enum pool_outcome; memory that was made is kept for the next attempt.
 * On devices `partial` is made at registration, since the ranks get its
 * location then. */
static int make_memory(struct group *group, struct error *err)
{
	const struct plan *plan = &group->plan;
	struct comm *comm = group->comm;
	int r = POOL_OK;

	if (group->record)
		take_shards(group);
	for (uint32_t i = 0; i < 2 && r == POOL_OK; i++)
		r = make_shards(group, i, err);
	if (r == POOL_OK && plan->grads_size)
		r = rank_memory_make(comm, group_size(group, plan->grads_size),
				     &group->grads, err);
	if (r == POOL_OK && plan->partial_size && comm->is_on_devices)
		r = rank_memory_make(comm,
				     group_size(group, plan->partial_size),
				     &group->partial, err);
	return r;
}

static int record_new(struct group *group, struct error *err)
{
	struct group_record_options options = {
		.comm = group->comm->record,
		.side = group->side,
		.plan_hash = group->plan.hash,
	};
	int r;

	if (group->record)
		return 0;
	r = group_record_make(group->comm->broker, &group->spec, &options,
			      &group->record, err);
	if (r == 0)
		group->n_charged = 0; /* the record is charged from now on */
	return r;
}

/* The group has all it needs: from here on it is kept. */
static void make_ready(struct group *group)
{
	struct broker *broker = group->comm->broker;

	for (uint32_t i = 0; i < 2; i++) {
		if (group->is_fresh[i])
			group_record_set_slots(broker, group->record, i,
					       group->shards[i].slots,
					       rank_memory_count(group->comm));
	}
	catalog_commit(&broker->catalog);
	point("group.stored");
	for (uint32_t i = 0; i < 2; i++) {
		struct rank_memory pinned = group->shards[i];

		if (group->is_fresh[i])
			rank_memory_unpin(group->comm, &pinned);
		group->is_fresh[i] = false;
	}
	group->is_ready = true;
	group->comm->n_registering--;
	comm_wake(group->comm);
}

static void progress(struct group *group)
{
	struct error err = ERROR_NULL;
	int r;

	r = make_memory(group, &err);
	if (r == POOL_WAIT)
		return;
	if (r == POOL_FULL) {
		group->shortage = err;
		return;
	}
	if (r == POOL_OK)
		r = record_new(group, &err);
	if (r == 0) {
		make_ready(group);
		return;
	}
	error_wrap(&err, r, "register group '%s'", group->name);
	withdraw(group, &err);
}

void groups_progress(struct comm *comm)
{
	struct group *group = comm->first_group;

	for (; group && comm->n_registering; group = group->next) {
		if (is_registering(group) &&
		    group->registered == comm_all(comm))
			progress(group);
	}
	free_told(comm);
}

void group_commit(struct group *group, uint64_t step)
{
	struct catalog *catalog = &group->comm->broker->catalog;
	struct group_record *record = catalog_group(catalog, group->record);

	assert(group->is_ready);
	group->side = !group->side;
	group->step = step;
	catalog_set(catalog, record->side, group->side);
	catalog_set(catalog, record->step, step);
}

/* --- lateness ------------------------------------------------------------ */

/* The registration that has waited longest; NULL: none waits. */
static struct group *find_late(const struct comm *comm)
{
	struct group *group = comm->first_group, *late = NULL;

	if (!comm->n_registering)
		return NULL;
	for (; group; group = group->next) {
		if (is_registering(group) &&
		    (!late || group->since_ms < late->since_ms))
			late = group;
	}
	return late;
}

uint64_t groups_deadline(const struct comm *comm)
{
	const struct group *late = find_late(comm);

	if (!late)
		return UINT64_MAX;
	return late->since_ms + (uint64_t)comm->timeout_ms;
}

void groups_on_late(struct comm *comm)
{
	struct group *late = find_late(comm);
	struct error why = ERROR_NULL;
	char missing[RANK_TEXT];

	if (late->registered == comm_all(comm)) {
		error_set(&why, -ENOMEM,
			  "there was no memory for group '%s' within %d ms: "
			  "%s",
			  late->name, comm->timeout_ms,
			  late->shortage.code ? late->shortage.msg
					      : "it is still being made");
		withdraw(late, &why);
		return;
	}
	comm_name_missing(comm, late->registered, missing, sizeof(missing));
	comm_fail(comm, -ECONNABORTED,
		  "%s has not registered group '%s' of communicator '%s' "
		  "within %d ms",
		  missing, late->name, comm->name, comm->timeout_ms);
}
