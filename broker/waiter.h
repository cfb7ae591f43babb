/*
 * Parked requests: those whose answer must wait for a name or for room.
 *
 * A parked request keeps its decoded form and is simply run again when what
 * it waits for may have come. Its time-out is the broker's. Requests that wait
 * for room run in the order in which they came, and one that still does not
 * fit does not hold up smaller ones behind it.
 *
 * Waking only marks: the reruns happen between transactions, never inside the
 * one that woke them.
 */
#pragma once
#include "broker/loop.h"
#include "proto/message.h"
#include <stdbool.h>
#include <stdint.h>

struct broker;
struct donation;
struct error;
struct session;

struct waiter_queue {
	struct waiter *first, *last;
};

struct waiter {
	struct session *session;
	struct request request;    /* owned */
	struct donation *donation; /* owned: what came with it; NULL */
	uint64_t number;
	uint32_t position; /* in the deadlines */
	bool is_timed_out; /* its time is over: only waits for memory that is
			      being made for it */
	char *name;        /* owned; NULL: waits for room */
	struct waiter_queue *queue; /* the one it is in */
	struct waiter *next, *prev; /* in there */
	struct waiter *session_next, *session_prev;
};

#define WAITER_BUCKETS 1024

struct waiters {
	struct waiter_queue buckets[WAITER_BUCKETS]; /* by name */
	struct waiter_queue room;
	struct waiter_queue ready; /* their name has come */
	struct waiter *next_room;  /* where the round through `room` stands */
	uint32_t n;
	bool is_room_wanted; /* begin a round through `room` */
	bool is_running;
	struct deferred reruns;
};

/*
 * Park `request` and `donation` (taken, also on failure). `name`: what it waits
 * for, NULL for room. `timeout_ms` -1: for ever; 0: the time is over already,
 * and only memory that is being made is waited for. Charges the uid: -EDQUOT.
 */
int waiter_park(struct session *session, struct request *request,
		struct donation *donation, uint64_t number, const char *name,
		int32_t timeout_ms, struct error *err);

/* A rerun that parks again, for the same or for something else: it keeps its
 * deadline, and in the room queue its place. */
int waiter_repark(struct waiter *waiter, const char *name, struct error *err);

/* Is a request of that number parked? */
bool waiter_has_number(const struct session *session, uint64_t number);

/* A name was published (a bundle's: with its '/'): rerun who waits for it, or
 * for something in it. */
void waiters_wake_name(struct broker *broker, const char *name);

/* The key of requests that wait until a thread has done something for this
 * user, and their waking. */
#define WAITER_UID_KEY_SIZE 24
void waiter_uid_key(uint32_t uid, char ret[WAITER_UID_KEY_SIZE]);
void waiters_wake_uid(struct broker *broker, uint32_t uid);

/* Memory was freed or made: rerun the room queue, and let communicators go on
 * that want room, soon (not from within the caller's transaction). */
void waiters_wake_room(struct broker *broker);

/* Between transactions: rerun whose name has come, a bounded number; an idle
 * round does the rest. */
void waiters_run_ready(struct broker *broker);

/* The waiters' part of an idle round. True: there is more to do. */
bool waiters_on_idle(struct broker *broker);

/* The connection is gone: the client sends them again when it is back. */
void waiters_drop_session(struct session *session);
