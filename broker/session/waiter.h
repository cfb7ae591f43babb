/*
 * Parked requests: requests whose reply waits for a name or for memory.
 *
 * A parked request keeps its decoded form and is run again when the name or
 * memory may have become available. The broker measures its time-out. Requests
 * that wait for memory run in the order in which they came, and one for which
 * there is still too little memory does not block smaller ones after it.
 *
 * Waking only marks a request: it is run again between transactions, never
 * inside the transaction that woke it.
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
	struct request request; /* owned */
	/* owned, came with the request; may be NULL */
	struct donation *donation;
	uint64_t number;
	uint32_t position; /* in the deadlines */
	uint64_t since_ns; /* of the meter: when it was parked */
	/* The time has expired, and the request waits only for memory that is
	 * being made for it. */
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
	/* The waiter with which the current round through `room` continues. */
	struct waiter *next_room;
	uint32_t n;
	bool is_room_wanted; /* start a round through `room` */
	bool is_running;
	struct deferred reruns;
};

/*
 * Park `request` and `donation` (taken, also on failure). `name` is the name to
 * wait for, or NULL for memory. `timeout_ms` -1 means unlimited; 0 means that
 * the time has already expired, and that the request waits only for memory that
 * is being made. Charges the uid, and returns -EDQUOT if that fails.
 */
int waiter_park(struct session *session, struct request *request,
		struct donation *donation, uint64_t number, const char *name,
		int32_t timeout_ms, struct error *err);

/* Park a rerun request again, for the same or for another reason. It keeps its
 * deadline, and its place if it is in the room queue. */
int waiter_repark(struct waiter *waiter, const char *name, struct error *err);

/* Returns whether a request of that number is parked. */
bool waiter_has_number(const struct session *session, uint64_t number);

/* Implements wake.on_name: run requests again that wait for this name or key,
 * or for a member of this bundle. */
void waiters_on_name(struct sessions *sessions, const char *name);

/* Implements wake.on_room: run the room queue soon, but not within the caller's
 * transaction. */
void waiters_on_room(struct sessions *sessions);

/* Implements wake.on_round: plan an idle round. */
void waiters_on_round(struct sessions *sessions);

/* Run a limited number of requests again whose name has appeared; an idle round
 * runs the others. Call it between transactions. */
void waiters_run_ready(struct sessions *sessions);

/* Run parked requests in an idle round. Returns true if there are more. */
bool waiters_on_idle(struct sessions *sessions);

/* Drop the session's requests, because its connection was lost. The client
 * sends them again when it reconnects. */
void waiters_drop_session(struct session *session);
