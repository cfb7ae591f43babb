/*
 * The list of gathers: which rank has started and resharded which, what each
 * waits for, and its way from the limiter to memory, the engine and its end.
 *
 * A gather stays in the list while its job runs, even if every rank has
 * resharded it meanwhile, so that its bytes count until they are free. Only a
 * commit drops it earlier, because its result belongs to the step before.
 */
#include "broker/comm/gather.h"
#include "broker/base/work.h"
#include "broker/broker.h"
#include "broker/comm/comm_worker.h"
#include "broker/comm/group.h"
#include "broker/tensor/limbo.h"
#include "broker/tensor/slot.h"
#include "broker/tensor/storage.h"
#include "collective/wire.h"
#include "proto/error.h"
#include "proto/point.h"
#include <errno.h>
#include <stdlib.h>

/* --- the list ------------------------------------------------------------ */

static void append(struct comm *comm, struct gather *gather)
{
	if (comm->last_gather)
		comm->last_gather->next = gather;
	else
		comm->first_gather = gather;
	comm->last_gather = gather;
}

static void take_out(struct comm *comm, struct gather *gather)
{
	struct gather *prev = NULL, *at = comm->first_gather;

	while (at != gather) {
		prev = at;
		at = at->next;
	}
	if (prev)
		prev->next = gather->next;
	else
		comm->first_gather = gather->next;
	if (comm->last_gather == gather)
		comm->last_gather = prev;
}

/* The gather that the rank has started and not resharded. */
static struct gather *find_open(const struct group *group, uint32_t rank)
{
	struct gather *gather = group->comm->first_gather;

	for (; gather; gather = gather->next) {
		if (gather->group == group &&
		    (gather->started & ~gather->ended & rank_bit(rank)))
			return gather;
	}
	return NULL;
}

/* The first gather that others have started and the rank has not. */
static struct gather *find_next(const struct comm *comm, uint32_t rank)
{
	struct gather *gather = comm->first_gather;

	while (gather && (gather->started & rank_bit(rank)))
		gather = gather->next;
	return gather;
}

static uint32_t count(const struct comm *comm)
{
	const struct gather *gather = comm->first_gather;
	uint32_t n = 0;

	for (; gather; gather = gather->next)
		n++;
	return n;
}

/* Bytes of one slot of unsharded parameters, which the limiter counts. A plan
 * in place allocates none. */
static uint64_t full_size(const struct group *group)
{
	const struct plan *plan = &group->plan;

	if (plan->is_in_place)
		return 0;
	if (group->comm->is_on_devices)
		return plan->full_size + wire_gather_tail(plan).size;
	return plan->full_size * plan->n_replicas;
}

/* --- the limiter --------------------------------------------------------- */

/* What waiting gathers wait for has changed: restart their time-outs. */
static void restart_waits(struct comm *comm)
{
	struct gather *gather = comm->first_gather;

	for (; gather; gather = gather->next)
		gather->waits_since_ms = now_ms();
}

/* Have all ranks resharded it, and has its job ended? */
static bool is_over(const struct gather *gather)
{
	const struct comm *comm = gather->group->comm;

	return gather->ended == comm_all(comm) &&
	       gather->state != GATHER_RUNNING &&
	       (gather->state == GATHER_DONE || !comm_worker_is_bound(comm));
}

/* With the FSDP1 limiter the first rank's reshard enqueues the event of an
 * admitted gather; a ticket that still waits is freed only with its gather. */
static bool is_ticket_due(const struct gather *gather)
{
	if (gather->is_ticket_freed)
		return false;
	if (is_over(gather))
		return true;
	return gather->group->comm->asked.limiter == COMM_LIMITER_FAITHFUL &&
	       gather->ended && gather->state != GATHER_LIMITED;
}

static void free_ticket_if_due(struct gather *gather)
{
	struct comm *comm = gather->group->comm;

	if (!is_ticket_due(gather))
		return;
	/* Shards of a smaller mesh that stay are not freed: no event. */
	limiter_free_ticket(comm->limiter, gather->ticket, !gather->n_mesh);
	gather->is_ticket_freed = true;
	restart_waits(comm);
}

/* --- memory kept for reuse ----------------------------------------------- */

/* If the ranks do the work themselves, their streams order the accesses to
 * memory that was unsharded before, so it can be reused at once, without
 * waiting for them. False: not possible here. */
static bool put_aside(const struct gather *gather)
{
	struct comm *comm = gather->group->comm;
	struct full_aside *aside;

	if (!comm->is_by_ranks || !rank_memory_is_whole(comm, &gather->full))
		return false;
	aside = malloc(sizeof(*aside));
	if (!aside)
		return false;
	*aside = (struct full_aside){
		.memory = gather->full,
		.size = full_size(gather->group),
		.next = comm->first_aside,
	};
	comm->first_aside = aside;
	return true;
}

/* Take memory that fits and is at most twice too large; false: there
 * is none. */
static bool take_aside(struct gather *gather)
{
	struct comm *comm = gather->group->comm;
	uint64_t size = full_size(gather->group);
	struct full_aside **at = &comm->first_aside, *aside;

	while (*at && ((*at)->size < size || (*at)->size / 2 > size))
		at = &(*at)->next;
	aside = *at;
	if (!aside)
		return false;
	*at = aside->next;
	gather->full = aside->memory;
	free(aside);
	return true;
}

static bool drop_aside(struct comm *comm)
{
	struct full_aside *aside;
	bool is_dropped = comm->first_aside;

	while ((aside = comm->first_aside)) {
		comm->first_aside = aside->next;
		rank_memory_unpin(comm, &aside->memory);
		free(aside);
	}
	return is_dropped;
}

/* --- ends ---------------------------------------------------------------- */

static void release_slot(struct gather *gather)
{
	struct group *group = gather->group;
	struct comm *comm = group->comm;
	bool is_kept = gather->n_mesh && !group->plan.is_in_place &&
		       gather->state == GATHER_DONE &&
		       !rank_memory_is_whole(comm, &group->kept_full);

	if (is_kept)
		group->kept_full = gather->full;
	else if (!put_aside(gather))
		rank_memory_unpin(comm, &gather->full);
	gather->full = (struct rank_memory){.slots = {0}};
}

/* Remove it from the list, with its ticket; the caller releases the slot. */
static void forget(struct gather *gather)
{
	struct comm *comm = gather->group->comm;

	limiter_complete(comm->limiter, gather->ticket);
	restart_waits(comm);
	take_out(comm, gather);
	free(gather);
}

/* The gather may have been freed afterwards. */
static void end_if_over(struct gather *gather)
{
	free_ticket_if_due(gather);
	if (!is_over(gather))
		return;
	release_slot(gather);
	forget(gather);
}

static bool drop_kept(struct group *group)
{
	if (!rank_memory_is_whole(group->comm, &group->kept_full))
		return false;
	rank_memory_unpin(group->comm, &group->kept_full);
	return true;
}

void gathers_on_commit(struct comm *comm)
{
	struct group *group = comm->first_group;
	struct gather *gather;

	/* No rank has a gather open: those that are left still run. */
	while ((gather = comm->first_gather)) {
		if (!gather->is_ticket_freed)
			limiter_free_ticket(comm->limiter, gather->ticket,
					    !gather->n_mesh);
		gather->n_mesh = 0;
		release_slot(gather);
		forget(gather);
	}
	for (; group; group = group->next)
		(void)drop_kept(group);
}

void gathers_free(struct comm *comm)
{
	struct group *group = comm->first_group;
	struct gather *gather;

	while ((gather = comm->first_gather)) {
		comm->first_gather = gather->next;
		rank_memory_unpin(comm, &gather->full);
		free(gather);
	}
	comm->last_gather = NULL;
	(void)drop_aside(comm);
	for (; group; group = group->next)
		(void)drop_kept(group);
}

/* --- requests of ranks --------------------------------------------------- */

static int refuse_order(const struct group *group, uint32_t rank,
			const struct gather *next, struct error *err)
{
	char mine[RANK_TEXT], theirs[RANK_TEXT];
	const struct comm *comm = group->comm;

	comm_rank_name(comm, rank, mine, sizeof(mine));
	comm_rank_name(comm, rank_first(next->started), theirs, sizeof(theirs));
	return error_set(err, -EINVAL,
			 "%s unshards '%s', but the ranks' next one is '%s', "
			 "which %s began; all must unshard in the same order",
			 mine, group->name, next->group->name, theirs);
}

/* May the rank begin a gather that no other rank has begun? */
static int check_new(const struct group *group, uint32_t rank,
		     struct error *err)
{
	const struct comm *comm = group->comm;
	char name[RANK_TEXT];

	if (!group->step)
		return error_set(err, -ENODATA,
				 "nothing of group '%s' was committed yet: "
				 "write the shards and commit a step first",
				 group->name);
	comm_rank_name(comm, rank, name, sizeof(name));
	if (comm->committing)
		return error_set(err, -EINVAL,
				 "%s unshards '%s', but other ranks commit "
				 "step %llu next; all must do the same in the "
				 "same order",
				 name, group->name,
				 (unsigned long long)comm->committing);
	if (count(comm) >= GATHER_MAX)
		return error_set(err, -EBUSY,
				 "%s is %d unshards ahead of others; wait for "
				 "one of them",
				 name, GATHER_MAX);
	return 0;
}

static int begin(struct group *group, struct gather **ret, struct error *err)
{
	struct comm *comm = group->comm;
	struct comms *comms = &comm->broker->comms;
	struct gather *gather = calloc(1, sizeof(*gather));
	int r;

	if (!gather)
		return error_set(err, -ENOMEM, "no memory for an unshard");
	r = limiter_request(comm->limiter, full_size(group),
			    group->plan.policy.stays_unsharded, &gather->ticket,
			    err);
	if (r < 0) {
		free(gather);
		return r;
	}
	gather->group = group;
	gather->sequence = ++group->n_gathers;
	gather->turn = comm_worker_take_turn(comm);
	gather->since_ms = now_ms();
	gather->waits_since_ms = gather->since_ms;
	comms->n_unshards++;
	if (!limiter_is_admitted(comm->limiter, gather->ticket))
		comms->n_limited++;
	append(comm, gather);
	*ret = gather;
	return 0;
}

/* From now on the rank is expected to start the next gather. */
static void mark_started(struct gather *gather, uint32_t rank)
{
	gather->started |= rank_bit(rank);
	if (gather->next)
		gather->next->since_ms = now_ms();
	comm_wake(gather->group->comm);
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
		gather = find_next(group->comm, rank);
		if (gather && gather->group != group)
			return refuse_order(group, rank, gather, err);
		if (!gather) {
			r = check_new(group, rank, err);
			if (r == 0)
				r = begin(group, &gather, err);
			if (r < 0)
				return r;
		}
		mark_started(gather, rank);
	}
	*ret_sequence = gather->sequence;
	return 0;
}

static int check_mesh(const struct gather *gather, uint32_t rank,
		      uint32_t n_mesh, struct error *err)
{
	const struct comm *comm = gather->group->comm;
	char mine[RANK_TEXT], theirs[RANK_TEXT];
	int r;

	/* Each node keeps or drops its copy depending on its memory, but all
	 * ranks would have to know whether the next unshard communicates. */
	if (n_mesh && comm->n_ranks < comm->n_world)
		return error_set(err, -EINVAL,
				 "'%s' cannot be resharded to a smaller mesh: "
				 "communicator '%s' spans several nodes",
				 gather->group->name, comm->name);
	if (n_mesh) {
		r = plan_check_mesh(&gather->group->plan, n_mesh, err);
		if (r < 0)
			return error_wrap(err, r, "reshard '%s'",
					  gather->group->name);
	}
	if (!gather->ended || gather->n_mesh == n_mesh)
		return 0;
	comm_rank_name(comm, rank, mine, sizeof(mine));
	comm_rank_name(comm, rank_first(gather->ended), theirs, sizeof(theirs));
	return error_set(err, -EINVAL,
			 "%s reshards '%s' to a mesh of %u, but %s did to one "
			 "of %u (0: not at all); all must do the same",
			 mine, gather->group->name, n_mesh, theirs,
			 gather->n_mesh);
}

int gather_stop(struct group *group, uint32_t rank, uint32_t n_mesh,
		struct error *err)
{
	struct gather *gather = find_open(group, rank);
	char name[RANK_TEXT];
	int r;

	if (!gather) {
		comm_rank_name(group->comm, rank, name, sizeof(name));
		return error_set(err, -EINVAL, "%s has not unsharded '%s'",
				 name, group->name);
	}
	r = check_mesh(gather, rank, n_mesh, err);
	if (r < 0)
		return r;
	gather->ended |= rank_bit(rank);
	gather->n_mesh = n_mesh;
	end_if_over(gather);
	comm_wake(group->comm);
	return 0;
}

int gather_find(const struct group *group, uint32_t rank, uint64_t sequence,
		struct gather **ret, struct error *err)
{
	struct gather *gather = find_open(group, rank);
	char name[RANK_TEXT];

	if (gather && (sequence == 0 || gather->sequence == sequence)) {
		*ret = gather;
		return 0;
	}
	comm_rank_name(group->comm, rank, name, sizeof(name));
	return error_set(err, -EINVAL,
			 "%s has no unshard %llu of '%s': it was resharded, or "
			 "never begun",
			 name, (unsigned long long)sequence, group->name);
}

int gathers_check_commit(const struct comm *comm, uint32_t rank,
			 struct error *err)
{
	const struct gather *gather = comm->first_gather;
	const struct gather *next = find_next(comm, rank);
	char mine[RANK_TEXT], theirs[RANK_TEXT];

	comm_rank_name(comm, rank, mine, sizeof(mine));
	for (; gather; gather = gather->next) {
		if (gather->started & ~gather->ended & rank_bit(rank))
			return error_set(err, -EBUSY,
					 "%s has '%s' unsharded; reshard it "
					 "before the commit",
					 mine, gather->group->name);
	}
	if (!next)
		return 0;
	comm_rank_name(comm, rank_first(next->started), theirs, sizeof(theirs));
	return error_set(err, -EINVAL,
			 "%s commits, but the ranks' next step is to unshard "
			 "'%s', which %s began",
			 mine, next->group->name, theirs);
}

/* --- progress ------------------------------------------------------------ */

static void fail(const struct group *group, const struct error *cause)
{
	comm_fail(group->comm, -ECONNABORTED,
		  "the work stopped while group '%s' of communicator '%s' was "
		  "gathered: %s",
		  group->name, group->comm->name, cause->msg);
}

static void finish(struct group *group, struct gather *gather)
{
	gather->state = GATHER_DONE;
	restart_waits(group->comm);
	end_if_over(gather);
	comm_wake(group->comm);
}

static void on_gathered(void *data, const struct job_done *done)
{
	struct work *work = data;
	struct broker *broker = work->broker;
	struct group *group = work_find_group(work);
	struct error cause = ERROR_NULL;
	struct gather *gather;

	gather = group ? group->comm->first_gather : NULL;
	while (gather &&
	       (gather->group != group || gather->sequence != work->sequence))
		gather = gather->next;
	free(work);
	if (!gather)
		return;
	if (done->code < 0) {
		error_set(&cause, done->code, "%s", done->sentence);
		fail(group, &cause);
	} else {
		finish(group, gather);
	}
	catalog_commit(&broker->catalog);
	point("gather.done");
}

/* All ranks share one memory. */
static int submit_shared(const struct gather *gather, struct work *work,
			 struct error *err)
{
	const struct group *group = gather->group;
	struct engine_slots slots = {
		.shards = group->shards[group->side].slots[0],
		.full = gather->full.slots[0],
	};
	struct job job = {
		.kind = JOB_GATHER,
		.stream = work_stream(group, WORK_STREAM_GATHER),
		.plan = group->engine_plan,
	};

	return engine_submit(&work->broker->engine, &job, &slots, on_gathered,
			     work, err);
}

static int submit_each(const struct gather *gather, struct work *work,
		       struct error *err)
{
	const struct group *group = gather->group;
	struct engine_rank_slots slots = {
		.n_ranks = group->comm->n_ranks,
		.shards = group->shards[group->side].slots,
		.full = gather->full.slots,
	};
	struct job_device job = {
		.kind = JOB_DEVICE_GATHER,
		.comm = group->comm->id,
		.plan = group->engine_plan,
	};

	return engine_submit_device(&work->broker->engine, &job, &slots,
				    on_gathered, work, err);
}

static int submit(struct gather *gather, struct error *err)
{
	struct group *group = gather->group;
	struct work *work;
	int r;

	r = work_new(group, gather->sequence, &work, err);
	if (r < 0)
		return r;
	r = group->comm->is_on_devices ? submit_each(gather, work, err)
				       : submit_shared(gather, work, err);
	if (r < 0) {
		free(work);
		return r;
	}
	comm_worker_end_turn(group->comm);
	gather->state = GATHER_RUNNING;
	point("gather.submitted");
	return 0;
}

/* Drop copies kept for smaller meshes before a gather has to wait. */
static bool drop_all_kept(struct comm *comm)
{
	struct group *group = comm->first_group;
	bool is_dropped = drop_aside(comm);

	for (; group; group = group->next)
		is_dropped |= drop_kept(group);
	return is_dropped;
}

/* Get capacity at the engine, and memory for the unsharded parameters. Returns
 * enum pool_outcome. */
static int make_room(struct gather *gather, struct error *err)
{
	struct comm *comm = gather->group->comm;
	uint64_t size = full_size(gather->group);
	int r;

	gather->shortage = ERROR_NULL;
	if (!comm->is_by_ranks &&
	    engine_check_room(&comm->broker->engine, &gather->shortage) < 0)
		return POOL_FULL;
	if (take_aside(gather))
		return POOL_OK;
	r = rank_memory_make(comm, size, &gather->full, err);
	if (r == POOL_FULL && drop_all_kept(comm))
		r = rank_memory_make(comm, size, &gather->full, err);
	if (r == POOL_FULL)
		gather->shortage = *err;
	return r;
}

/* The ranks do the work: for the broker it is done when it may begin. */
static void hand_to_ranks(struct gather *gather)
{
	struct group *group = gather->group;
	struct engine *engine = &group->comm->broker->engine;

	engine->n_gathers++;
	engine->bytes_gathered += group->plan.full_size * group->comm->n_ranks;
	gather->state = GATHER_DONE;
	comm_wake(group->comm);
}

/* False: it waits for memory or its turn, or the communicator has failed. */
static bool start_one(struct gather *gather)
{
	struct error err = ERROR_NULL;
	int r;

	if (!comm_worker_is_turn(gather->group, gather->turn))
		return false;
	r = make_room(gather, &err);
	if (r == POOL_OK && gather->group->comm->is_by_ranks)
		hand_to_ranks(gather);
	else if (r == POOL_OK)
		r = submit(gather, &err);
	if (r < 0)
		fail(gather->group, &err);
	return r == 0;
}

/* Admit a gather; one that needs no memory is done then. It stays in the list,
 * since a gather that was limited cannot have been resharded by all ranks. */
static void admit(struct gather *gather)
{
	struct group *group = gather->group;

	gather->waits_since_ms = now_ms();
	gather->state = GATHER_DONE;
	if (group->plan.is_in_place) {
		gather->full = group->shards[group->side];
		rank_memory_pin(group->comm, &gather->full);
	} else if (rank_memory_is_whole(group->comm, &group->kept_full)) {
		gather->full = group->kept_full;
		group->kept_full = (struct rank_memory){.slots = {0}};
	} else {
		gather->state = GATHER_WANTS_ROOM;
	}
	free_ticket_if_due(gather);
	if (gather->state == GATHER_DONE)
		comm_wake(group->comm);
}

/* Admit gathers in order, so that an event enqueued for one is available to the
 * next; after the first that is not admitted, no other is. Returns whether some
 * need memory. */
static bool admit_all(struct comm *comm)
{
	struct gather *gather = comm->first_gather;
	bool is_room_wanted = false;

	for (; gather; gather = gather->next) {
		if (gather->state == GATHER_LIMITED) {
			if (!limiter_is_admitted(comm->limiter, gather->ticket))
				break;
			admit(gather);
		}
		is_room_wanted |= gather->state == GATHER_WANTS_ROOM;
	}
	return is_room_wanted;
}

/* Start gathers in order. The first that finds no memory blocks the ones after
 * it, since smaller ones might otherwise starve it. */
static void start_all(struct comm *comm)
{
	struct gather *gather = comm->first_gather;
	uint32_t n_running = 0;

	for (; gather && n_running < GATHER_MAX_RUNNING;
	     gather = gather->next) {
		if (gather->state == GATHER_WANTS_ROOM && !start_one(gather))
			return;
		n_running += gather->state == GATHER_RUNNING;
	}
}

void gathers_progress(struct comm *comm)
{
	if (!admit_all(comm))
		return;
	limbo_collect_released(comm->broker);
	start_all(comm);
	catalog_commit(&comm->broker->catalog);
}
