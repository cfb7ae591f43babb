/*
 * Queues of parked requests. A waiter is in exactly one queue (the bucket of
 * its name, the room queue, or the ready queue) and in the list of its session.
 * A waiter that is being rerun is in neither, so that dropping the session's
 * waiters cannot free it, and the loop over the ready queue cannot run it
 * again. It does keep its place in the room queue, because no request handler
 * walks that queue.
 */
#include "broker/session/waiter.h"
#include "broker/base/account.h"
#include "broker/base/deadline.h"
#include "broker/memory/donation.h"
#include "broker/session/session.h"
#include "broker/session/sessions.h"
#include "proto/error.h"
#include "proto/name.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* The time limit of a round, since reruns may be expensive and other clients
 * wait meanwhile. */
#define ROUND_NS 1000000

/* The seed prevents a client from choosing names that all share one bucket. */
static struct waiter_queue *bucket(struct sessions *sessions, const char *name)
{
	uint64_t seed = sessions->store->catalog.header->hash_seed;
	uint64_t hash = XXH3_64bits_withSeed(name, strlen(name), seed);

	return &sessions->waiters.buckets[hash % WAITER_BUCKETS];
}

static void queue_append(struct waiter_queue *queue, struct waiter *waiter)
{
	assert(!waiter->queue);
	waiter->queue = queue;
	waiter->next = NULL;
	waiter->prev = queue->last;
	if (queue->last)
		queue->last->next = waiter;
	else
		queue->first = waiter;
	queue->last = waiter;
}

static void queue_remove(struct waiters *waiters, struct waiter *waiter)
{
	struct waiter_queue *queue = waiter->queue;

	assert(queue);
	if (waiters->next_room == waiter)
		waiters->next_room = waiter->next;
	if (waiter->prev)
		waiter->prev->next = waiter->next;
	else
		queue->first = waiter->next;
	if (waiter->next)
		waiter->next->prev = waiter->prev;
	else
		queue->last = waiter->prev;
	waiter->queue = NULL;
}

static void session_link(struct waiter *waiter)
{
	struct session *session = waiter->session;

	waiter->session_prev = NULL;
	waiter->session_next = session->first_waiter;
	if (session->first_waiter)
		session->first_waiter->session_prev = waiter;
	session->first_waiter = waiter;
}

static void session_unlink(struct waiter *waiter)
{
	if (waiter->session_prev)
		waiter->session_prev->session_next = waiter->session_next;
	else
		waiter->session->first_waiter = waiter->session_next;
	if (waiter->session_next)
		waiter->session_next->session_prev = waiter->session_prev;
}

static void waiter_free(struct waiter *waiter)
{
	struct session *session = waiter->session;
	struct sessions *sessions = session->sessions;

	/* The waiter was counted, and has left the list of its session. */
	assert(session->first_waiter != waiter);
	assert(session->n_waiting > 0 && sessions->waiters.n > 0);
	if (waiter->queue)
		queue_remove(&sessions->waiters, waiter);
	if (waiter->position)
		deadlines_remove(&sessions->base->deadlines, &waiter->position);
	request_deinit(&waiter->request);
	donation_drop(waiter->donation);
	free(waiter->name);
	account_refund(session->holdings.account, ACCOUNT_WAITING, 1);
	session->n_waiting--;
	sessions->waiters.n--;
	free(waiter);
}

static void rerun(struct waiter *waiter)
{
	struct waiters *waiters = &waiter->session->sessions->waiters;
	const struct session_hooks *hooks = &waiter->session->sessions->hooks;

	session_unlink(waiter);
	if (waiter->queue != &waiters->room)
		queue_remove(waiters, waiter);
	if (!hooks->on_rerun(hooks->data, waiter)) {
		session_link(waiter);
		return;
	}
	meter_parked(&waiter->session->sessions->base->loop.meter,
		     waiter->request.kind, waiter->since_ns);
	waiter_free(waiter);
}

static void on_deadline(void *data, uint32_t index)
{
	struct waiter *waiter = data;

	(void)index;
	waiter->is_timed_out = true;
	rerun(waiter);
}

static int set_deadline(struct waiter *waiter, int32_t timeout_ms,
			struct error *err)
{
	struct deadline deadline = {
		.fn = on_deadline,
		.data = waiter,
		.position = &waiter->position,
	};

	waiter->is_timed_out = timeout_ms == 0;
	if (timeout_ms <= 0)
		return 0;
	deadline.at_ms = now_ms() + (uint64_t)timeout_ms;
	return deadlines_add(&waiter->session->sessions->base->deadlines,
			     &deadline, err);
}

/* Make a waiter that is charged but in no queue yet. Takes the request, also on
 * failure. Returns NULL with `err` set if the quota or the memory is
 * exhausted. */
static struct waiter *waiter_new(struct session *session,
				 struct request *request, struct error *err)
{
	struct sessions *sessions = session->sessions;
	struct waiter *waiter = calloc(1, sizeof(*waiter));

	if (!waiter) {
		error_nomem(err, "a waiting request");
		goto refuse;
	}
	if (account_charge(&sessions->base->accounts, session->holdings.account,
			   ACCOUNT_WAITING, 1, err) < 0)
		goto refuse;
	waiter->request = *request;
	*request = (struct request){0};
	waiter->session = session;
	waiter->since_ns = meter_now(&sessions->base->loop.meter);
	session->n_waiting++;
	sessions->waiters.n++;
	return waiter;
refuse:
	free(waiter);
	request_deinit(request);
	return NULL;
}

int waiter_park(struct session *session, struct request *request,
		struct donation *donation, uint64_t number, const char *name,
		int32_t timeout_ms, struct error *err)
{
	struct error cause = ERROR_NULL;
	struct waiter *waiter;
	int r;

	waiter = waiter_new(session, request, &cause);
	if (!waiter) {
		donation_drop(donation);
		return error_set(err, cause.code, "%s", cause.msg);
	}
	waiter->donation = donation;
	waiter->number = number;
	r = waiter_repark(waiter, name, err);
	if (r == 0)
		r = set_deadline(waiter, timeout_ms, err);
	if (r < 0) {
		waiter_free(waiter);
		return r;
	}
	session_link(waiter);
	return 0;
}

int waiter_repark(struct waiter *waiter, const char *name, struct error *err)
{
	struct waiters *waiters = &waiter->session->sessions->waiters;
	char *copy = NULL;

	if (!name && waiter->queue == &waiters->room)
		return 0;
	if (name) {
		copy = strdup(name);
		if (!copy)
			return error_nomem(err, "a wait for \"%s\"", name);
	}
	if (waiter->queue)
		queue_remove(waiters, waiter);
	free(waiter->name);
	waiter->name = copy;
	queue_append(copy ? bucket(waiter->session->sessions, copy)
			  : &waiters->room,
		     waiter);
	return 0;
}

bool waiter_has_number(const struct session *session, uint64_t number)
{
	const struct waiter *waiter;

	for (waiter = session->first_waiter; waiter;
	     waiter = waiter->session_next) {
		if (waiter->number == number)
			return true;
	}
	return false;
}

/* Returns whether the publication of `published` wakes a request that waits for
 * `wanted`. */
static bool concerns(const char *published, const char *wanted)
{
	if (name_is_bundle(published))
		return strncmp(published, wanted, strlen(published)) == 0;
	return strcmp(published, wanted) == 0;
}

static void wake_bucket(struct waiters *waiters, struct waiter_queue *queue,
			const char *name)
{
	struct waiter *waiter, *next;

	for (waiter = queue->first; waiter; waiter = next) {
		next = waiter->next;
		if (!concerns(name, waiter->name))
			continue;
		queue_remove(waiters, waiter);
		queue_append(&waiters->ready, waiter);
	}
}

void waiters_on_name(struct sessions *sessions, const char *name)
{
	struct waiters *waiters = &sessions->waiters;

	if (waiters->n == 0)
		return;
	if (name_is_bundle(name)) {
		for (size_t i = 0; i < WAITER_BUCKETS; i++)
			wake_bucket(waiters, &waiters->buckets[i], name);
	} else {
		wake_bucket(waiters, bucket(sessions, name), name);
	}
	if (waiters->ready.first)
		loop_defer(&sessions->base->loop, &sessions->waiters.reruns);
}

void waiters_on_room(struct sessions *sessions)
{
	sessions->store->evictables.is_continuing = false;
	if (!sessions->waiters.room.first) {
		sessions->store->pools.n_rounds++;
		return;
	}
	sessions->waiters.is_room_wanted = true;
	loop_defer(&sessions->base->loop, &sessions->waiters.reruns);
}

void waiters_on_round(struct sessions *sessions)
{
	loop_defer(&sessions->base->loop, &sessions->waiters.reruns);
}

void waiters_run_ready(struct sessions *sessions)
{
	struct waiters *waiters = &sessions->waiters;
	uint64_t end;

	if (waiters->is_running || !waiters->ready.first)
		return;
	end = uv_hrtime() + ROUND_NS;
	waiters->is_running = true;
	while (waiters->ready.first && uv_hrtime() < end)
		rerun(waiters->ready.first);
	waiters->is_running = false;
}

static void run_room(struct sessions *sessions)
{
	struct waiters *waiters = &sessions->waiters;
	uint64_t end = uv_hrtime() + ROUND_NS;
	struct waiter *waiter;

	if (waiters->is_room_wanted && !waiters->next_room) {
		waiters->is_room_wanted = false;
		sessions->store->pools.n_rounds++;
		waiters->next_room = waiters->room.first;
	}
	while (waiters->next_room && uv_hrtime() < end) {
		waiter = waiters->next_room;
		waiters->next_room = waiter->next;
		rerun(waiter);
	}
}

bool waiters_on_idle(struct sessions *sessions)
{
	struct waiters *waiters = &sessions->waiters;

	waiters_run_ready(sessions);
	run_room(sessions);
	if (!waiters->next_room && !waiters->is_room_wanted)
		sessions->store->evictables.is_continuing = false;
	return waiters->ready.first || waiters->next_room ||
	       (waiters->is_room_wanted && waiters->room.first);
}

void waiters_drop_session(struct session *session)
{
	struct waiter *waiter;

	while ((waiter = session->first_waiter)) {
		session_unlink(waiter);
		waiter_free(waiter);
	}
}
