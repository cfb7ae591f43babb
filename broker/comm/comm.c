/*
 * Running communicators: finding them, waking waiters, failing, and the rounds
 * in which work continues.
 *
 * A failure only marks and wakes. The resources of the run are released in the
 * next round, so a function that walks its lists may fail it at any point.
 *
 * A rank that leaves does not make the run fail at once: the others may only
 * have replies to fetch before they leave as well. It fails when they request
 * something that needs all ranks (needs_all()).
 */
#include "broker/comm/comm.h"
#include "broker/base/process.h"
#include "broker/broker.h"
#include "broker/comm/comm_record.h"
#include "broker/comm/comm_worker.h"
#include "broker/comm/gather.h"
#include "broker/comm/group.h"
#include "broker/comm/reduce.h"
#include "proto/error.h"
#include "proto/name.h"
#include "proto/point.h"
#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANK_TEXT 160 /* of comm_rank_name() and lists of ranks */

static uint64_t bit(uint32_t rank)
{
	return UINT64_C(1) << rank;
}

static uint64_t min_u64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* --- finding ------------------------------------------------------------- */

bool comm_find_rank(const struct comm *comm, const struct session *session,
		    uint32_t *ret)
{
	for (uint32_t i = 0; i < comm->n_ranks; i++) {
		if (comm->ranks[i].session != session)
			continue;
		*ret = i;
		return true;
	}
	return false;
}

bool comm_find_place(const struct comm *comm, uint32_t rank, uint32_t *ret)
{
	uint32_t i = 0;

	while (i < comm->n_ranks &&
	       !(comm->ranks[i].is_placed && comm->ranks[i].rank == rank))
		i++;
	if (i == comm->n_ranks) {
		i = 0;
		while (i < comm->n_ranks && comm->ranks[i].is_placed)
			i++;
	}
	*ret = i;
	return i < comm->n_ranks;
}

struct comm *comm_find_name(const struct broker *broker, const char *name)
{
	struct comm *comm = broker->comms.first;

	while (comm && (comm->state == COMM_FAILED || strcmp(comm->name, name)))
		comm = comm->next;
	return comm;
}

int comm_find_any(const struct session *session, uint64_t id, struct comm **ret,
		  uint32_t *ret_rank, struct error *err)
{
	struct comm *comm = session->broker->comms.first;

	while (comm && comm->id != id)
		comm = comm->next;
	if (!comm || !comm_find_rank(comm, session, ret_rank))
		return error_set(err, -ECONNABORTED,
				 "communicator %llu is not running here (it "
				 "has ended, or the broker was restarted); "
				 "join it again",
				 (unsigned long long)id);
	*ret = comm;
	return 0;
}

int comm_find(const struct session *session, uint64_t id, struct comm **ret,
	      uint32_t *ret_rank, struct error *err)
{
	struct comm *comm;
	int r;

	r = comm_find_any(session, id, &comm, ret_rank, err);
	if (r < 0)
		return r;
	if (comm->state == COMM_FAILED)
		return comm_refuse_failed(comm, err);
	if (comm->state == COMM_JOINING)
		return error_set(err, -EINVAL,
				 "not all ranks of communicator '%s' have "
				 "joined yet",
				 comm->name);
	*ret = comm;
	return 0;
}

int comm_refuse_failed(const struct comm *comm, struct error *err)
{
	assert(comm->state == COMM_FAILED);
	return error_set(err, comm->failure.code, "%s", comm->failure.msg);
}

/* --- text ---------------------------------------------------------------- */

uint64_t comm_all(const struct comm *comm)
{
	return comm->n_ranks == PLAN_MAX_RANKS ? UINT64_MAX
					       : bit(comm->n_ranks) - 1;
}

const char *comm_rank_name(const struct comm *comm, uint32_t rank, char *buffer,
			   size_t size)
{
	const struct comm_rank *who = &comm->ranks[rank];

	if (!who->is_placed)
		snprintf(buffer, size, "one more rank of this node");
	else if (who->pid)
		snprintf(buffer, size, "rank %u (pid %u, %s)", who->rank,
			 who->pid, who->command);
	else
		snprintf(buffer, size, "rank %u", who->rank);
	return buffer;
}

void comm_name_missing(const struct comm *comm, uint64_t done_mask, char *ret,
		       size_t size)
{
	uint64_t missing = comm_all(comm) & ~done_mask;
	int n_more = __builtin_popcountll(missing) - 1;
	char name[RANK_TEXT];

	if (!missing) {
		snprintf(ret, size, "nobody");
		return;
	}
	comm_rank_name(comm, (uint32_t)__builtin_ctzll(missing), name,
		       sizeof(name));
	if (n_more)
		snprintf(ret, size, "%s and %d more", name, n_more);
	else
		snprintf(ret, size, "%s", name);
}

/* --- waking and failing -------------------------------------------------- */

void comm_wake(struct comm *comm)
{
	wake_name(&comm->broker->wake, comm->key);
	comm->wants_progress = true;
	loop_defer(&comm->broker->loop, &comm->broker->comms.progress);
}

static void let_go_of_record(struct comm *comm)
{
	if (comm->record) {
		groups_keep_counts(comm);
		comm_record_keep(comm->broker, comm->record);
	}
	comm->record = 0;
}

/* A client can cause failures in a tight loop: log one line a second. */
static void log_failure(const struct comm *comm)
{
	struct comms *comms = &comm->broker->comms;
	uint64_t now = now_ms();

	if (comms->logged_ms && now - comms->logged_ms < 1000) {
		comms->n_unlogged++;
		return;
	}
	log_line(LOG_LEVEL_INFO,
		 "communicator '%s' failed: %s (%u more since the last line)",
		 comm->name, comm->failure.msg, comms->n_unlogged);
	comms->logged_ms = now;
	comms->n_unlogged = 0;
}

void comm_fail(struct comm *comm, int code, const char *format, ...)
{
	va_list args;

	if (comm->state == COMM_FAILED)
		return;
	comm->state = COMM_FAILED;
	comm->failure.code = code;
	va_start(args, format);
	vsnprintf(comm->failure.msg, sizeof(comm->failure.msg), format, args);
	va_end(args);
	comm->broker->comms.n_failed++;
	log_failure(comm);
	let_go_of_record(comm);
	comm_wake(comm);
	/* Requests that wait for memory of an input must see the
	 * failure, too. */
	wake_room(&comm->broker->wake);
}

static int add_deadline(struct comm *comm, uint64_t at_ms, struct error *err);

/* Set the ranks of the places that are known before any rank joins: if the
 * whole world is on this node, or shards are kept for each place. */
static void place_ranks(struct comm *comm, const struct comm_record *record)
{
	for (uint32_t i = 0; i < comm->n_ranks; i++) {
		struct comm_rank *who = &comm->ranks[i];

		if (comm->n_ranks == comm->n_world)
			who->rank = i;
		else if (record->first_group)
			who->rank = record->places[i].rank;
		else
			continue;
		who->is_placed = true;
	}
}

static void fill_new(struct comm *comm, const struct comm_join_request *request)
{
	struct catalog *catalog = &comm->broker->catalog;
	const struct comm_record *record = catalog_comm(catalog, comm->record);

	comm->id = catalog->header->next_comm_id;
	catalog_set(catalog, catalog->header->next_comm_id, comm->id + 1);
	comm->state = COMM_JOINING;
	comm->n_world = request->n_ranks;
	comm->n_ranks = request->n_local;
	comm->is_on_devices = !device_uuid_is_host(&request->device);
	comm->is_by_ranks =
		comm->is_on_devices && request->home == COMM_HOME_RANK;
	comm->n_shards = request->n_shards;
	comm->timeout_ms = request->timeout_ms;
	comm->n_inputs = request->n_inputs;
	comm->step = record->step;
	comm->access = record->access;
	comm->begun_ms = now_ms();
	snprintf(comm->name, sizeof(comm->name), "%s", request->name);
	snprintf(comm->key, sizeof(comm->key), "//comm/%llu",
		 (unsigned long long)comm->id);
	comm->asked = *request;
	comm->asked.name = comm->name;
	place_ranks(comm, record);
}

_Static_assert(sizeof(((struct comm *)0)->name) > NAME_MAX_SIZE, "names fit");

/* A failed run outlives its record, so it is charged separately. */
static int charge(struct comm *comm, const char *name, struct error *err)
{
	struct accounts *accounts = &comm->broker->accounts;
	struct account *account;
	int r;

	comm->uid = catalog_comm(&comm->broker->catalog, comm->record)->uid;
	account = accounts_get(accounts, comm->uid);
	if (!account)
		return error_set(err, -ENOMEM, "no memory for uid %u",
				 comm->uid);
	r = account_charge(accounts, account, ACCOUNT_GROUPS, COMM_RUN_CHARGE,
			   err);
	return r < 0 ? error_wrap(err, r, "run communicator '%s'", name) : 0;
}

static void refund(struct comm *comm)
{
	struct account *account =
		accounts_get(&comm->broker->accounts, comm->uid);

	assert(account); /* it was charged, so it exists */
	account_refund(account, ACCOUNT_GROUPS, COMM_RUN_CHARGE);
}

int comm_new(struct broker *broker, uint32_t record,
	     const struct comm_join_request *request, struct comm **ret,
	     struct error *err)
{
	const struct limiter_options options = {
		.kind = request->limiter == COMM_LIMITER_FAITHFUL
				? LIMITER_FAITHFUL
				: LIMITER_WINDOW,
		/* More cannot be in flight, and the FSDP1 limiter remembers at
		 * most as many events. */
		.limit = request->limit < GATHER_MAX ? request->limit
						     : GATHER_MAX,
		.limit_bytes = request->limit_bytes,
	};
	struct comm *comm = calloc(1, sizeof(*comm));
	int r;

	if (!comm)
		return error_set(err, -ENOMEM,
				 "no memory for one more communicator");
	comm->broker = broker;
	comm->record = record;
	r = limiter_new(&options, &comm->limiter, err);
	if (r == 0)
		r = charge(comm, request->name, err);
	if (r < 0)
		goto free_comm;
	r = add_deadline(comm, UINT64_MAX, err);
	if (r < 0) {
		refund(comm);
		goto free_comm;
	}
	fill_new(comm, request);
	comm_record_use(broker, record, request);
	comm->next = broker->comms.first;
	if (comm->next)
		comm->next->prev = comm;
	broker->comms.first = comm;
	broker->comms.n++;
	comm_update_deadline(comm);
	*ret = comm;
	return 0;

free_comm:
	limiter_free(comm->limiter);
	free(comm);
	return r;
}

static void comm_free(struct comm *comm)
{
	struct broker *broker = comm->broker;

	comm_worker_forget(comm);
	gathers_free(comm);
	reductions_free(comm);
	let_go_of_record(comm);
	groups_free(comm);
	wake_name(&broker->wake, comm->key);
	deadlines_remove(&broker->deadlines, &comm->deadline_position);
	limiter_free(comm->limiter);
	refund(comm);
	if (comm->prev)
		comm->prev->next = comm->next;
	else
		broker->comms.first = comm->next;
	if (comm->next)
		comm->next->prev = comm->prev;
	broker->comms.n--;
	free(comm);
}

void comms_deinit(struct broker *broker)
{
	while (broker->comms.first)
		comm_free(broker->comms.first);
}

/* --- leaving ------------------------------------------------------------- */

static bool is_over(const struct comm *comm)
{
	return comm->n_left == comm->n_joined;
}

/* The rank is gone; what that means for the run is up to the caller. */
static void part(struct comm *comm, uint32_t rank)
{
	comm->ranks[rank].session = NULL;
	comm->ranks[rank].has_left = true;
	comm->n_left++;
	comm_wake(comm);
}

static void fail_by(struct comm *comm, uint32_t rank, const char *how)
{
	char name[RANK_TEXT];

	comm_fail(comm, -ECONNABORTED, "%s of communicator '%s' has %s",
		  comm_rank_name(comm, rank, name, sizeof(name)), comm->name,
		  how);
}

void comm_leave(struct comm *comm, uint32_t rank)
{
	part(comm, rank);
	/* Ranks that join would wait in vain. */
	if (comm->state == COMM_JOINING && !is_over(comm))
		fail_by(comm, rank, "left");
}

static void fail_by_death(struct comm *comm, uint32_t rank,
			  const struct session *session)
{
	pid_t pid = (pid_t)session_record(session)->pid;
	char end[PROCESS_END_SIZE], how[sizeof(end) + sizeof("died: it ")];

	if (process_describe_end(session->pidfd, pid, end))
		snprintf(how, sizeof(how), "died: it %s", end);
	else
		snprintf(how, sizeof(how), "died");
	fail_by(comm, rank, how);
}

/* A goodbye counts as leaving. */
static bool has_died(const struct session *session)
{
	/* A session without a pidfd ends only after its process was
	 * found dead. */
	return session->pidfd < 0 || process_has_ended(session->pidfd);
}

void comms_end_session(struct broker *broker, struct session *session)
{
	struct comm *comm = broker->comms.first;
	bool is_dead = comm && has_died(session);
	uint32_t rank;

	for (; comm; comm = comm->next) {
		if (!comm_find_rank(comm, session, &rank))
			continue;
		if (!is_dead) {
			comm_leave(comm, rank);
			continue;
		}
		part(comm, rank);
		if (!is_over(comm))
			fail_by_death(comm, rank, session);
	}
}

static uint64_t left_mask(const struct comm *comm)
{
	uint64_t left = 0;

	for (uint32_t i = 0; i < comm->n_ranks; i++) {
		if (comm->ranks[i].has_left)
			left |= bit(i);
	}
	return left;
}

/* Some ranks have left: do the others request something that needs all ranks?
 * Fetching results and releasing memory does not. */
static bool needs_all(const struct comm *comm, uint64_t left)
{
	const struct gather *gather = comm->first_gather;
	const struct reduction *reduction = comm->first_reduction;

	if (comm->committing || comm->n_registering)
		return true;
	for (; gather; gather = gather->next) {
		if (gather->state == GATHER_LIMITED ||
		    (left & ~gather->started))
			return true;
	}
	for (; reduction; reduction = reduction->next) {
		if (left & ~reduction->submitted)
			return true;
	}
	return false;
}

/* --- committing ---------------------------------------------------------- */

int comm_check_not_committing(const struct comm *comm, uint32_t rank,
			      struct error *err)
{
	char name[RANK_TEXT];

	if (!comm->ranks[rank].step)
		return 0;
	comm_rank_name(comm, rank, name, sizeof(name));
	return error_set(err, -EBUSY,
			 "%s has committed step %llu, but not all others have "
			 "yet; wait for the commit first",
			 name, (unsigned long long)comm->ranks[rank].step);
}

static int check_step(const struct comm *comm, uint64_t step, struct error *err)
{
	if (step <= comm->step)
		return error_set(err, -EINVAL,
				 "step %llu is not above the last one that was "
				 "committed, %llu",
				 (unsigned long long)step,
				 (unsigned long long)comm->step);
	if (comm->committing && comm->committing != step)
		return error_set(err, -EINVAL,
				 "other ranks commit step %llu, not %llu",
				 (unsigned long long)comm->committing,
				 (unsigned long long)step);
	return 0;
}

int comm_commit(struct comm *comm, uint32_t rank, uint64_t step,
		struct error *err)
{
	int r;

	r = comm_check_not_committing(comm, rank, err);
	if (r == 0)
		r = check_step(comm, step, err);
	if (r == 0)
		r = groups_check_commit(comm, rank, err);
	if (r == 0)
		r = gathers_check_commit(comm, rank, err);
	if (r == 0)
		r = reductions_check_commit(comm, rank, err);
	if (r < 0)
		return r;
	if (!comm->committing)
		comm->committing_since_ms = now_ms();
	comm->committing = step;
	comm->ranks[rank].step = step;
	comm_wake(comm);
	return 0;
}

uint64_t comm_committed(const struct comm *comm)
{
	uint64_t mask = 0;

	for (uint32_t i = 0; i < comm->n_ranks; i++) {
		if (comm->ranks[i].step)
			mask |= bit(i);
	}
	return mask;
}

/* All ranks have committed: one transaction changes the step. */
static void complete_commit(struct comm *comm)
{
	struct catalog *catalog = &comm->broker->catalog;
	struct comm_record *record = catalog_comm(catalog, comm->record);
	struct group *group = comm->first_group;
	uint64_t step = comm->committing;

	catalog_commit(catalog);
	point("comm.committing");
	for (; group; group = group->next) {
		if (!group->is_ready)
			continue;
		group_commit(group, step);
		point("comm.flipped");
	}
	catalog_set(catalog, record->step, step);
	catalog_commit(catalog);
	point("comm.committed");
	comm->step = step;
	comm->committing = 0;
	for (uint32_t i = 0; i < comm->n_ranks; i++)
		comm->ranks[i].step = 0;
	comm->broker->comms.n_commits++;
	gathers_on_commit(comm);
	comm_wake(comm);
}

/* --- lateness ------------------------------------------------------------ */

static uint64_t joined_mask(const struct comm *comm)
{
	uint64_t mask = 0;

	for (uint32_t i = 0; i < comm->n_ranks; i++) {
		if (comm->ranks[i].session)
			mask |= bit(i);
	}
	return mask;
}

static bool has_all(const struct comm *comm)
{
	return comm->n_joined == comm->n_ranks;
}

static uint64_t commit_deadline(const struct comm *comm)
{
	if (!comm->committing || comm->agreeing == comm->committing)
		return UINT64_MAX;
	return comm->committing_since_ms + (uint64_t)comm->timeout_ms;
}

static uint64_t find_deadline(const struct comm *comm)
{
	uint64_t at_ms = UINT64_MAX;

	/* While the worker opens it, the worker's time-out applies. */
	if (comm->state == COMM_JOINING && !has_all(comm))
		return comm->begun_ms + (uint64_t)comm->timeout_ms;
	if (comm->state == COMM_RUNNING) {
		at_ms = min_u64(groups_deadline(comm), gathers_deadline(comm));
		at_ms = min_u64(at_ms, reductions_deadline(comm));
		at_ms = min_u64(at_ms, commit_deadline(comm));
	}
	return at_ms;
}

static void fail_join(struct comm *comm)
{
	char missing[RANK_TEXT];

	comm_name_missing(comm, joined_mask(comm), missing, sizeof(missing));
	comm_fail(comm, -ETIMEDOUT,
		  "%s did not join communicator '%s' within %d ms", missing,
		  comm->name, comm->timeout_ms);
}

static void fail_commit(struct comm *comm)
{
	char missing[RANK_TEXT];

	comm_name_missing(comm, comm_committed(comm), missing, sizeof(missing));
	comm_fail(comm, -ECONNABORTED,
		  "%s has not committed step %llu of communicator '%s' within "
		  "%d ms",
		  missing, (unsigned long long)comm->committing, comm->name,
		  comm->timeout_ms);
}

/* A deadline has expired: find out which, and fail the communicator. */
static void judge(struct comm *comm, uint64_t now)
{
	struct error late = ERROR_NULL;

	if (comm->state == COMM_JOINING) {
		fail_join(comm);
		return;
	}
	if (groups_deadline(comm) <= now) {
		groups_on_late(comm);
		return;
	}
	if (commit_deadline(comm) <= now) {
		fail_commit(comm);
		return;
	}
	if (gathers_deadline(comm) <= now)
		gathers_describe_late(comm, &late);
	else
		reductions_describe_late(comm, &late);
	comm_fail(comm, late.code, "communicator '%s': %s", comm->name,
		  late.msg);
}

static void set_deadline(struct comm *comm, uint64_t at_ms);

static void on_deadline(void *data, uint32_t index)
{
	struct comm *comm = data;

	(void)index;
	set_deadline(comm, UINT64_MAX);
	if (find_deadline(comm) <= now_ms())
		judge(comm, now_ms());
	comm_update_deadline(comm);
	catalog_commit(&comm->broker->catalog);
}

static int add_deadline(struct comm *comm, uint64_t at_ms, struct error *err)
{
	struct deadline deadline = {
		.at_ms = at_ms,
		.fn = on_deadline,
		.data = comm,
		.position = &comm->deadline_position,
	};

	return deadlines_add(&comm->broker->deadlines, &deadline, err);
}

/* There is always a deadline, if only at the end of time, so that setting it
 * cannot fail for lack of memory. */
static void set_deadline(struct comm *comm, uint64_t at_ms)
{
	int r;

	deadlines_remove(&comm->broker->deadlines, &comm->deadline_position);
	r = add_deadline(comm, at_ms, NULL);
	assert(r == 0); /* the old one's entry is free */
	(void)r;
}

void comm_update_deadline(struct comm *comm)
{
	set_deadline(comm, find_deadline(comm));
}

/* --- rounds -------------------------------------------------------------- */

static void let_go(struct comm *comm)
{
	comm_worker_forget(comm);
	gathers_free(comm);
	reductions_free(comm);
	groups_end(comm);
}

static void advance(struct comm *comm)
{
	uint64_t left = left_mask(comm);

	if (left && needs_all(comm, left)) {
		fail_by(comm, (uint32_t)__builtin_ctzll(left), "left");
		return;
	}
	groups_progress(comm);
	if (comm->state == COMM_RUNNING)
		gathers_progress(comm);
	if (comm->state == COMM_RUNNING)
		reductions_progress(comm);
	if (comm->state == COMM_RUNNING && comm->committing &&
	    comm_committed(comm) == comm_all(comm) &&
	    comm_worker_has_agreed(comm))
		complete_commit(comm);
}

/* The communicator may have been freed afterwards. */
static void progress(struct comm *comm)
{
	struct catalog *catalog = &comm->broker->catalog;

	comm->wants_progress = false;
	if (is_over(comm)) {
		comm_free(comm);
		catalog_commit(catalog);
		return;
	}
	if (comm->state == COMM_JOINING && has_all(comm) && !comm->is_at_worker)
		comm_worker_open(comm);
	if (comm->state == COMM_RUNNING)
		advance(comm);
	if (comm->state == COMM_FAILED)
		let_go(comm);
	comm_update_deadline(comm);
	catalog_commit(catalog);
}

static bool wants_room(const struct comm *comm)
{
	return comm->state == COMM_RUNNING &&
	       (comm->n_registering || comm->first_gather ||
		comm->first_reduction);
}

void comms_on_room(struct broker *broker)
{
	if (!broker->comms.first)
		return;
	broker->comms.is_room_new = true;
	loop_defer(&broker->loop, &broker->comms.progress);
}

bool comms_on_idle(struct broker *broker)
{
	struct comms *comms = &broker->comms;
	bool is_room_new = comms->is_room_new;
	struct comm *comm, *next;

	comms->is_room_new = false;
	comms->progress.is_wanted = false;
	for (comm = comms->first; comm; comm = next) {
		next = comm->next;
		if (comm->wants_progress || (is_room_new && wants_room(comm)))
			progress(comm);
	}
	return comms->progress.is_wanted;
}
