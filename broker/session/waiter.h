/*
 * Parked requests: those whose reply waits for a name or for memory.
 *
 * A parked request keeps its decoded form and is run again when the name or
 * memory may have become available. The broker measures its time-out. Requests
 * that wait for memory run in the order in which they came, and one that still
 * does not fit does not block smaller ones after it.
 *
 * Waking only marks a request: reruns happen between transactions, never inside
 * the one that woke them.
 */
#pragma once
#include "broker/base/loop.h"
#include "proto/message.h"
#include <stdbool.h>
#include <stdint.h>

struct sessions;
struct donation;
struct error;
struct session;

struct waiter_queue {
	struct waiter *first, *last;
};

struct waiter {
	struct session *session;
	struct request request;    /* owned */
	struct donation *donation; /* owned, came with the request; NULL */
	uint64_t number;
	uint32_t position; /* in the deadlines */
	uint64_t since_ns; /* of the meter: when it was parked */
	/* Its time has expired, and it waits only for memory that is being made
	 * for it. */
	bool is_timed_out;
	char *name;                 /* owned; NULL: waits for memory */
	struct waiter_queue *queue; /* the queue that it is in */
	struct waiter *next, *prev; /* links of that queue */
	struct waiter *session_next, *session_prev;
};

#define WAITER_BUCKETS 1024

struct waiters {
	struct waiter_queue buckets[WAITER_BUCKETS]; /* hashed by name */
	struct waiter_queue room;
	struct waiter_queue ready; /* their name has appeared */
	/* Where the current round through `room` continues. */
	struct waiter *next_room;
	uint32_t n;
	bool is_room_wanted; /* start a round through `room` */
	bool is_running;
	struct deferred reruns;
};

/*
 * Park `request` and `donation` (taken, also on failure). `name`: the name to
 * wait for, NULL for memory. `timeout_ms` -1: unlimited; 0: the time has
 * already expired, and the request waits only for memory that is being made.
 * Charges the uid: -EDQUOT.
 */
int waiter_park(struct session *session, struct request *request,
		struct donation *donation, uint64_t number, const char *name,
		int32_t timeout_ms, struct error *err);

/* Park a rerun request again, for the same or for another reason. It keeps its
 * deadline, and in the room queue its place. */
int waiter_repark(struct waiter *waiter, const char *name, struct error *err);

/* Is a request of that number parked? */
bool waiter_has_number(const struct session *session, uint64_t number);

/* For wake.on_name: rerun requests that wait for this name or key, or for a
 * member of this bundle. */
void waiters_on_name(struct sessions *sessions, const char *name);

/* For wake.on_room: rerun the room queue soon (not from within the caller's
 * transaction). */
void waiters_on_room(struct sessions *sessions);

/* For wake.on_round. */
void waiters_on_round(struct sessions *sessions);

/* Between transactions: rerun a bounded number of requests whose name has
 * appeared; an idle round runs the rest. */
void waiters_run_ready(struct sessions *sessions);

/* The waiters' part of an idle round. True: there is more to do. */
bool waiters_on_idle(struct sessions *sessions);

/* The connection was lost: drop the session's requests, which the client sends
 * again when it reconnects. */
void waiters_drop_session(struct session *session);
