/*
 * comm_fail() only marks the run and wakes its ranks. The resources of the run
 * are released in the next round (comm_progress.c), so a function that walks
 * its lists may fail it at any point.
 */
#include "broker/comm/comm.h"
#include "broker/base/clock.h"
#include "broker/base/process.h"
#include "broker/comm/comm_record.h"
#include "broker/comm/group_record.h"
#include "broker/comm/run_board.h"
#include "broker/comm/run_record.h"
#include "broker/comm/verdict.h"
#include "broker/session/session.h"
#include "broker/tensor/store.h"
#include "proto/ending.h"
#include "proto/error.h"
#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Several ranks may ask for a look at about the same time. */
#define LOOK_PAUSE_MS 10

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

struct comm *comm_find_name(const struct comms *comms, const char *name)
{
	struct comm *comm = comms->first;

	while (comm && (comm->state == COMM_FAILED || strcmp(comm->name, name)))
		comm = comm->next;
	return comm;
}

struct comm *comm_find_id(const struct comms *comms, uint64_t id)
{
	struct comm *comm = comms->first;

	while (comm && comm->id != id)
		comm = comm->next;
	return comm;
}

int comm_find_any(struct comms *comms, const struct session *session,
		  uint64_t id, struct comm **ret, uint32_t *ret_rank,
		  struct error *err)
{
	struct comm *comm = comm_find_id(comms, id);

	if (!comm || !comm_find_rank(comm, session, ret_rank))
		return error_set(err, -ECONNABORTED,
				 "communicator %llu is not running here (it "
				 "has ended, or the broker was restarted); "
				 "join it again",
				 (unsigned long long)id);
	*ret = comm;
	return 0;
}

int comm_find(struct comms *comms, const struct session *session, uint64_t id,
	      struct comm **ret, uint32_t *ret_rank, struct error *err)
{
	struct comm *comm;
	int r;

	r = comm_find_any(comms, session, id, &comm, ret_rank, err);
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
					       : rank_bit(comm->n_ranks) - 1;
}

uint64_t comm_left(const struct comm *comm)
{
	uint64_t left = 0;

	for (uint32_t i = 0; i < comm->n_ranks; i++) {
		if (comm->ranks[i].has_left)
			left |= rank_bit(i);
	}
	return left;
}

const char *comm_rank_name(const struct comm *comm, uint32_t rank,
			   char ret[RANK_TEXT])
{
	const struct comm_rank *member = &comm->ranks[rank];

	if (!member->is_placed)
		snprintf(ret, RANK_TEXT, "one more rank of this node");
	else if (member->pid)
		snprintf(ret, RANK_TEXT, "rank %u (pid %u, %s)", member->rank,
			 member->pid, member->command);
	else
		snprintf(ret, RANK_TEXT, "rank %u", member->rank);
	return ret;
}

void comm_name_missing(const struct comm *comm, uint64_t done_mask,
		       char ret[RANK_TEXT])
{
	uint64_t missing = comm_all(comm) & ~done_mask;
	int n_more = __builtin_popcountll(missing) - 1;
	size_t size;

	if (!missing) {
		snprintf(ret, RANK_TEXT, "nobody");
		return;
	}
	size = strlen(comm_rank_name(comm, rank_first(missing), ret));
	if (n_more)
		snprintf(ret + size, RANK_TEXT - size,
			 ", like %d other rank%s,", n_more,
			 n_more > 1 ? "s" : "");
}

/* --- waking and failing -------------------------------------------------- */

void comm_wake(struct comm *comm)
{
	wake_name(&comm->comms->store->base->wake, comm->key);
	comm->wants_progress = true;
	loop_defer(&comm->comms->store->base->loop, &comm->comms->progress);
}

void comm_release_record(struct comm *comm)
{
	if (comm->record) {
		groups_keep_counts(comm);
		comm_record_keep(comm->comms, comm->record);
	}
	comm->record = 0;
}

static void log_failure(const struct comm *comm)
{
	uint32_t n;

	if (log_limit_allows(&comm->comms->failures, &n))
		log_line(LOG_LEVEL_INFO,
			 "communicator '%s' failed: %s (%u more since the last "
			 "line)",
			 comm->name, comm->failure.msg, n);
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
	verdict_fail(comm);
	run_board_ring(comm);
	comm->comms->n_failed++;
	log_failure(comm);
	comm_release_record(comm);
	comm_wake(comm);
	/* Requests that wait for the memory of an input must see the failure,
	 * too. */
	wake_room(&comm->comms->store->base->wake);
}

/* --- leaving ------------------------------------------------------------- */

bool comm_has_all(const struct comm *comm)
{
	return comm->n_joined == comm->n_ranks;
}

bool comm_is_over(const struct comm *comm)
{
	return comm->n_left == comm->n_joined;
}

void comm_attach(struct comm *comm, uint32_t rank, struct session *session)
{
	const struct session_record *record = session_record(session);
	struct comm_rank *member = &comm->ranks[rank];

	assert(!member->session);
	member->comm = comm;
	member->session = session;
	member->reply_to = 0;
	member->pid = record->pid;
	memcpy(member->command, record->command, sizeof(member->command));
	member->session_next = session->first_rank;
	if (member->session_next)
		member->session_next->session_prev = member;
	session->first_rank = member;
}

static void detach(struct comm_rank *member)
{
	if (member->session_prev)
		member->session_prev->session_next = member->session_next;
	else
		member->session->first_rank = member->session_next;
	if (member->session_next)
		member->session_next->session_prev = member->session_prev;
	member->session_next = member->session_prev = NULL;
	member->session = NULL;
}

/* Note that the rank has left or died. The caller decides about the run. */
static void part(struct comm *comm, uint32_t rank)
{
	assert(!comm->ranks[rank].has_left && comm->n_left < comm->n_joined);
	detach(&comm->ranks[rank]);
	comm->ranks[rank].has_left = true;
	comm->n_left++;
	run_record_note_rank(comm, rank);
	comm_wake(comm);
}

void comm_fail_by(struct comm *comm, uint32_t rank, const char *how)
{
	char name[RANK_TEXT];

	comm_fail(comm, -ECONNABORTED, "%s of communicator '%s' has %s",
		  comm_rank_name(comm, rank, name), comm->name, how);
}

void comm_leave(struct comm *comm, uint32_t rank)
{
	part(comm, rank);
	run_board_note_left(comm, rank);
	/* The communicator cannot be completed, so the joins of other ranks
	 * must not wait. */
	if (comm->state == COMM_JOINING && !comm_is_over(comm))
		comm_fail_by(comm, rank, "left");
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
	comm_fail_by(comm, rank, how);
}

void comm_look(struct comm *comm, uint32_t rank)
{
	const struct session *session =
		rank < comm->n_ranks ? comm->ranks[rank].session : NULL;

	if (session && process_is_ending((pid_t)session_record(session)->pid))
		fail_by_death(comm, rank, session);
}

void comm_look_all(struct comm *comm)
{
	uint64_t now = now_ms();

	if (now < comm->looked_ms + LOOK_PAUSE_MS)
		return;
	comm->looked_ms = now;
	for (uint32_t i = 0; i < comm->n_ranks; i++)
		comm_look(comm, i);
}

/* Returns whether the process has exited. If it only said goodbye, it has
 * left. */
static bool has_died(const struct session *session)
{
	/* A session without a pidfd ends only after its process was
	 * found dead. */
	return session->pidfd < 0 || process_has_ended(session->pidfd);
}

void comm_end_session(struct session *session)
{
	bool is_dead = session->first_rank && has_died(session);

	while (session->first_rank) {
		struct comm *comm = session->first_rank->comm;
		uint32_t rank = (uint32_t)(session->first_rank - comm->ranks);

		if (!is_dead) {
			comm_leave(comm, rank);
			continue;
		}
		part(comm, rank);
		if (!comm_is_over(comm))
			fail_by_death(comm, rank, session);
	}
}

/* --- committing ---------------------------------------------------------- */

int comm_check_not_committing(const struct comm *comm, uint32_t rank,
			      struct error *err)
{
	char name[RANK_TEXT];

	if (!comm->ranks[rank].step)
		return 0;
	comm_rank_name(comm, rank, name);
	return error_set(err, -EBUSY,
			 "%s has committed step %llu, but not all other ranks "
			 "have; wait for the commit first",
			 name, (unsigned long long)comm->ranks[rank].step);
}
