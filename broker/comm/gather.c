/*
 * A gather stays in the list while its job runs, even if every rank has
 * resharded it in the meantime, so that its bytes count until they are free.
 * Only a commit removes it earlier, because its result belongs to the step
 * before.
 */
#include "broker/comm/gather.h"
#include "broker/comm/comm_worker.h"
#include "broker/comm/full_memory.h"
#include "broker/comm/group.h"
#include "broker/tensor/store.h"
#include "proto/error.h"
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

/* --- the list ------------------------------------------------------------ */

/* Returns the gather that the rank has started and not resharded, or NULL. */
static struct gather *find_open(const struct group *group, uint32_t rank)
{
	struct gather *gather = gathers_first(group->comm);

	for (; gather; gather = gather_next(gather)) {
		if (gather->call.group == group &&
		    (gather->call.made & ~gather->ended & rank_bit(rank)))
			return gather;
	}
	return NULL;
}

/* --- the limiter --------------------------------------------------------- */

void gathers_restart_waits(struct comm *comm)
{
	struct call *call = comm->gathers.first;

	for (; call; call = call->next) {
		if (call->waits_since_ms)
			call->waits_since_ms = now_ms();
	}
}

/* Returns whether all ranks have resharded it and its job has ended. */
static bool is_over(const struct gather *gather)
{
	const struct comm *comm = gather->call.group->comm;

	return gather->ended == comm_all(comm) &&
	       gather->state != GATHER_RUNNING &&
	       (gather->state == GATHER_DONE || !comm_worker_is_bound(comm));
}

/* Returns whether the limiter's ticket can be freed. With the FSDP1 limiter the
 * first rank's reshard of an admitted gather enqueues the event; a ticket that
 * still waits is freed only with its gather. */
static bool is_ticket_due(const struct gather *gather)
{
	if (gather->is_ticket_freed)
		return false;
	if (is_over(gather))
		return true;
	return gather->call.group->comm->asked.limiter == COMM_LIMITER_FSDP1 &&
	       gather->ended && gather->state != GATHER_LIMITED;
}

void gather_free_ticket_if_due(struct gather *gather)
{
	struct comm *comm = gather->call.group->comm;

	if (!is_ticket_due(gather))
		return;
	/* Shards of a smaller mesh stay, so nothing is freed and there is no
	 * event. */
	limiter_free_ticket(comm->limiter, gather->ticket, !gather->n_mesh);
	gather->is_ticket_freed = true;
	gathers_restart_waits(comm);
}

/* --- ends ---------------------------------------------------------------- */

/* Remove the gather from the list, with its ticket. The caller releases its
 * memory. */
static void forget(struct gather *gather)
{
	struct comm *comm = gather->call.group->comm;

	limiter_complete(comm->limiter, gather->ticket);
	gathers_restart_waits(comm);
	calls_remove(&comm->gathers, &gather->call);
	free(gather);
}

void gather_end_if_over(struct gather *gather)
{
	gather_free_ticket_if_due(gather);
	if (!is_over(gather))
		return;
	full_memory_release(gather);
	forget(gather);
}

void gathers_on_commit(struct comm *comm)
{
	struct gather *gather;

	while ((gather = gathers_first(comm))) {
		/* No rank has it open, so it is in the list because its job
		 * runs. */
		assert(gather->ended == comm_all(comm));
		if (!gather->is_ticket_freed)
			limiter_free_ticket(comm->limiter, gather->ticket,
					    !gather->n_mesh);
		gather->n_mesh = 0;
		full_memory_release(gather);
		forget(gather);
	}
	(void)full_memory_drop_kept(comm);
}

void gathers_free(struct comm *comm)
{
	struct gather *gather;

	while ((gather = gathers_first(comm))) {
		calls_remove(&comm->gathers, &gather->call);
		rank_memory_unpin(comm, &gather->full);
		free(gather);
	}
	(void)full_memory_drop(comm);
}

/* --- requests of ranks --------------------------------------------------- */

static int refuse_order(const struct group *group, uint32_t rank,
			const struct call *next, struct error *err)
{
	char mine[RANK_TEXT], theirs[RANK_TEXT];
	const struct comm *comm = group->comm;

	comm_rank_name(comm, rank, mine);
	comm_rank_name(comm, rank_first(next->made), theirs);
	return error_set(err, -EINVAL,
			 "%s unshards '%s', but the ranks' next one is '%s', "
			 "which %s began; all must unshard in the same order",
			 mine, group->name, next->group->name, theirs);
}

/* Check that the rank may begin a gather that no other rank has begun. */
static int check_new(const struct group *group, uint32_t rank,
		     struct error *err)
{
	const struct comm *comm = group->comm;
	char name[RANK_TEXT];

	if (!group->step)
		return error_set(err, -ENODATA,
				 "group '%s' has no committed step yet: write "
				 "the shards and commit a step first",
				 group->name);
	comm_rank_name(comm, rank, name);
	if (comm->committing)
		return error_set(err, -EINVAL,
				 "%s unshards '%s', but other ranks commit "
				 "step %llu next; all must do the same in the "
				 "same order",
				 name, group->name,
				 (unsigned long long)comm->committing);
	if (calls_count(&comm->gathers) >= GATHER_MAX)
		return error_set(err, -EBUSY,
				 "%s is %d unshards ahead of others; wait for "
				 "one of them",
				 name, GATHER_MAX);
	return 0;
}

static int begin(struct group *group, struct gather **ret, struct error *err)
{
	struct comm *comm = group->comm;
	struct comms *comms = comm->comms;
	struct gather *gather = calloc(1, sizeof(*gather));
	int r;

	if (!gather)
		return error_nomem(err, "an unshard");
	r = limiter_request(comm->limiter, full_memory_size(group),
			    group->plan.policy.stays_unsharded, &gather->ticket,
			    err);
	if (r < 0) {
		free(gather);
		return r;
	}
	gather->call = (struct call){
		.group = group,
		.sequence = ++group->n_gathers,
		.turn = comm_worker_take_turn(comm),
		.since_ms = now_ms(),
		.waits_since_ms = now_ms(),
	};
	comms->n_unshards++;
	if (!limiter_is_admitted(comm->limiter, gather->ticket))
		comms->n_limited++;
	calls_append(&comm->gathers, &gather->call);
	*ret = gather;
	return 0;
}

/* Find the call that the rank makes next: one that others have made, or a new
 * one. */
static int find_next(struct group *group, uint32_t rank, struct gather **ret,
		     struct error *err)
{
	struct call *next = calls_next(&group->comm->gathers, rank);
	int r;

	if (next && next->group != group)
		return refuse_order(group, rank, next, err);
	if (next) {
		*ret = gather_of(next);
		return 0;
	}
	r = check_new(group, rank, err);
	if (r < 0)
		return r;
	return begin(group, ret, err);
}

int gather_start(struct group *group, uint32_t rank, uint64_t *ret_sequence,
		 struct error *err)
{
	struct gather *gather = find_open(group, rank);
	int r;

	r = comm_check_not_committing(group->comm, rank, err);
	if (r < 0)
		return r;
	if (!gather) {
		r = find_next(group, rank, &gather, err);
		if (r < 0)
			return r;
		call_note_made(&gather->call, rank);
	}
	*ret_sequence = gather->call.sequence;
	return 0;
}

static int check_mesh(const struct gather *gather, uint32_t rank,
		      uint32_t n_mesh, struct error *err)
{
	const struct comm *comm = gather->call.group->comm;
	char mine[RANK_TEXT], theirs[RANK_TEXT];
	int r;

	/* Each node keeps or drops its copy depending on its memory, but all
	 * ranks would have to know whether the next unshard communicates. */
	if (n_mesh && comm->n_ranks < comm->n_world)
		return error_set(err, -EINVAL,
				 "'%s' cannot be resharded to a smaller mesh: "
				 "communicator '%s' spans several nodes",
				 gather->call.group->name, comm->name);
	if (n_mesh) {
		r = plan_check_mesh(&gather->call.group->plan, n_mesh, err);
		if (r < 0)
			return error_wrap(err, r, "cannot reshard '%s'",
					  gather->call.group->name);
	}
	if (!gather->ended || gather->n_mesh == n_mesh)
		return 0;
	comm_rank_name(comm, rank, mine);
	comm_rank_name(comm, rank_first(gather->ended), theirs);
	return error_set(
		err, -EINVAL,
		"%s reshards '%s' to a mesh of %u ranks, but %s resharded it "
		"to a mesh of %u (0 means no mesh); all must do the same",
		mine, gather->call.group->name, n_mesh, theirs, gather->n_mesh);
}

int gather_stop(struct group *group, uint32_t rank, uint32_t n_mesh,
		struct error *err)
{
	struct gather *gather = find_open(group, rank);
	char name[RANK_TEXT];
	int r;

	if (!gather) {
		comm_rank_name(group->comm, rank, name);
		return error_set(err, -EINVAL, "%s has not unsharded '%s'",
				 name, group->name);
	}
	r = check_mesh(gather, rank, n_mesh, err);
	if (r < 0)
		return r;
	gather->ended |= rank_bit(rank);
	gather->n_mesh = n_mesh;
	gather_end_if_over(gather);
	comm_wake(group->comm);
	return 0;
}

int gather_find(const struct group *group, uint32_t rank, uint64_t sequence,
		struct gather **ret, struct error *err)
{
	struct gather *gather = find_open(group, rank);
	char name[RANK_TEXT];

	if (gather && (sequence == 0 || gather->call.sequence == sequence)) {
		*ret = gather;
		return 0;
	}
	comm_rank_name(group->comm, rank, name);
	return error_set(err, -EINVAL,
			 "%s has no unshard %llu of '%s': it was resharded, or "
			 "it was never begun",
			 name, (unsigned long long)sequence, group->name);
}

int gathers_check_commit(const struct comm *comm, uint32_t rank,
			 struct error *err)
{
	const struct gather *gather = gathers_first(comm);
	const struct call *next = calls_next(&comm->gathers, rank);
	char mine[RANK_TEXT], theirs[RANK_TEXT];

	comm_rank_name(comm, rank, mine);
	for (; gather; gather = gather_next(gather)) {
		if (gather->call.made & ~gather->ended & rank_bit(rank))
			return error_set(err, -EBUSY,
					 "%s has '%s' unsharded; reshard it "
					 "before the commit",
					 mine, gather->call.group->name);
	}
	if (!next)
		return 0;
	comm_rank_name(comm, rank_first(next->made), theirs);
	return error_set(err, -EINVAL,
			 "%s commits, but the ranks' next step is to unshard "
			 "'%s', which %s began",
			 mine, next->group->name, theirs);
}

bool group_is_unsharded(const struct group *group)
{
	const struct gather *gather = gathers_first(group->comm);

	for (; gather; gather = gather_next(gather)) {
		if (gather->call.group == group && gather->state == GATHER_DONE)
			return true;
	}
	return false;
}
