#include "broker/comm/group.h"
#include "broker/engine/engine.h"
#include "broker/tensor/store.h"
#include "proto/error.h"
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

bool group_is_withdrawn(const struct group *group)
{
	return group->refusal.code < 0;
}

bool group_is_registering(const struct group *group)
{
	return !group->is_ready && !group_is_withdrawn(group);
}

/* --- lists and ids ------------------------------------------------------- */

static struct group **id_bucket(struct comms *comms, uint64_t id)
{
	return &comms->groups[id % COMM_GROUP_BUCKETS];
}

static void link_group(struct comm *comm, struct group *group)
{
	struct group **bucket = id_bucket(comm->comms, group->id);

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
	struct group **at = id_bucket(comm->comms, group->id);
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
	assert(comm->n_groups > 0);
	comm->n_groups--;
}

struct group *group_find_id(const struct comms *comms, uint64_t id)
{
	struct group *group = comms->groups[id % COMM_GROUP_BUCKETS];

	while (group && group->id != id)
		group = group->id_next;
	return group;
}

int group_find(struct comms *comms, const struct session *session, uint64_t id,
	       struct group **ret, uint32_t *ret_rank, struct error *err)
{
	struct group *group = group_find_id(comms, id);
	struct comm *comm;
	int r;

	if (!group)
		return error_set(err, -ECONNABORTED,
				 "group %llu belongs to no running "
				 "communicator (it has ended, or the broker "
				 "was restarted); join and register again",
				 (unsigned long long)id);
	r = comm_find(comms, session, group->comm->id, &comm, ret_rank, err);
	if (r < 0)
		return r;
	*ret = group;
	return 0;
}

int group_make(struct comm *comm, const char *name, uint64_t id,
	       struct group **ret, struct error *err)
{
	struct group *group = calloc(1, sizeof(*group));

	if (!group)
		return error_nomem(err, "a group");
	assert(!group_find_id(comm->comms, id));
	snprintf(group->name, sizeof(group->name), "%s", name);
	group->comm = comm;
	group->since_ms = now_ms();
	group->id = id;
	comm->n_registering++;
	link_group(comm, group);
	*ret = group;
	return 0;
}

/* --- ends ---------------------------------------------------------------- */

static void refund(struct group *group)
{
	struct comm *comm = group->comm;

	if (!group->n_charged)
		return;
	accounts_refund(&comm->comms->store->base->accounts, group->charged_uid,
			ACCOUNT_GROUPS, group->n_charged);
	group->n_charged = 0;
}

/* Release the memory that belongs to the run, and the plan at the engine. The
 * gathers and reductions are freed already. */
static void end(struct group *group)
{
	struct comms *comms = group->comm->comms;

	for (uint32_t i = 0; i < 2; i++) {
		if (group->is_fresh[i])
			rank_memory_unpin(group->comm, &group->shards[i]);
		group->is_fresh[i] = false;
	}
	rank_memory_unpin(group->comm, &group->grads);
	rank_memory_unpin(group->comm, &group->partial);
	if (group->engine_plan)
		engine_remove_plan(comms->engine, group->engine_plan);
	group->engine_plan = NULL;
	/* The group is no longer charged, so its large parts are freed. */
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

void group_withdraw(struct group *group, const struct error *why)
{
	assert(group_is_registering(group) && why->code < 0);
	group->refusal = *why;
	assert(group->comm->n_registering > 0);
	group->comm->n_registering--;
	end(group);
	comm_wake(group->comm);
}

/* Returns whether the group is withdrawn, and every rank has got the cause or
 * has left. */
static bool is_told(const struct group *group)
{
	uint64_t told = group->answered | comm_left(group->comm);

	return group_is_withdrawn(group) && told == comm_all(group->comm);
}

void groups_free_told(struct comm *comm)
{
	struct group *group = comm->first_group, *next;

	for (; group; group = next) {
		next = group->next;
		if (is_told(group))
			group_free(group);
	}
}

int groups_check_commit(const struct comm *comm, uint32_t rank,
			struct error *err)
{
	const struct group *group = comm->first_group;
	char mine[RANK_TEXT], theirs[RANK_TEXT];

	while (group && !group_is_registering(group))
		group = group->next;
	if (!group)
		return 0;
	comm_rank_name(comm, rank, mine);
	if (group->registered & rank_bit(rank))
		return error_set(err, -EBUSY,
				 "%s registers group '%s'; wait for it before "
				 "the commit",
				 mine, group->name);
	comm_rank_name(comm, rank_first(group->registered), theirs);
	return error_set(err, -EINVAL,
			 "%s commits, but the ranks' next step is to register "
			 "group '%s', which %s began",
			 mine, group->name, theirs);
}

uint64_t group_size(const struct group *group, uint64_t size)
{
	const struct plan *plan = &group->plan;

	return group->comm->is_on_devices ? size / plan->n_shards
					  : size * plan->n_replicas;
}

void group_commit(struct group *group, uint64_t step)
{
	struct catalog *catalog = &group->comm->comms->store->catalog;
	struct group_record *record = catalog_group(catalog, group->record);

	assert(group->is_ready && step > group->step);
	group->side = !group->side;
	group->step = step;
	catalog_set(catalog, record->side, group->side);
	catalog_set(catalog, record->step, step);
}

/* --- lateness ------------------------------------------------------------ */

/* Returns the registration that has waited longest, or NULL. */
static struct group *find_late(const struct comm *comm)
{
	struct group *group = comm->first_group, *late = NULL;

	if (!comm->n_registering)
		return NULL;
	for (; group; group = group->next) {
		if (group_is_registering(group) &&
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

	assert(late); /* its deadline has expired */
	if (late->registered == comm_all(comm)) {
		error_set(&why, -ENOMEM,
			  "cannot allocate the memory of group '%s' within %d "
			  "ms: %s",
			  late->name, comm->timeout_ms,
			  late->shortage.code ? late->shortage.msg
					      : "fsdpd is still allocating it");
		group_withdraw(late, &why);
		return;
	}
	comm_name_missing(comm, late->registered, missing);
	comm_fail(comm, -ECONNABORTED,
		  "%s has not registered group '%s' of communicator '%s' "
		  "within %d ms",
		  missing, late->name, comm->name, comm->timeout_ms);
}
