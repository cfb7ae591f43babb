/*
 * Parked requests: those whose answer must wait for a name or for room.
 *
 * A parked request keeps its decoded form and is simply run again when what
 * it waits for may have come. Its time-out is the broker's. Requests that wait
 * for room run in the order in which they came, and one that still does not
 * fit does not hold up smaller ones behind it.
 */
#pragma once
#include "proto/message.h"
#include <stdbool.h>
#include <stdint.h>

struct broker;
struct error;
struct session;

struct waiter {
	struct session *session;
	struct request request; /* owned */
	uint64_t number;
	uint64_t deadline_ms; /* 0: none */
	uint32_t position;    /* in the deadlines */
	char *name;	      /* owned; NULL: waits for room */
	struct error *last;   /* owned: what to say at the time-out; may be NULL */
	struct waiter *next, *prev;		 /* of the session */
	struct waiter *queue_next, *queue_prev; /* of the bucket, or of the room queue */
};

#define WAITER_BUCKETS 1024

struct waiters {
	struct waiter *buckets[WAITER_BUCKETS]; /* by name */
	struct waiter *first_room, *last_room;
	uint32_t n;
	bool is_room_wanted; /* an idle round will rerun the room queue */
};

/*
 * Park `request` (taken, also on failure). `name`: what it waits for, NULL for
 * room. `timeout_ms` -1: for ever. A rerun that parks again keeps its deadline
 * and its place. Charges the uid: -EDQUOT.
 */
int waiter_park(struct session *session, struct request *request,
		uint64_t number, const char *name, int32_t timeout_ms,
		const struct error *reason, struct error *err);

/* A name was published (a bundle's: with its '/'): rerun who waits for it. */
void waiters_wake_name(struct broker *broker, const char *name);

/* Memory was freed or made: rerun the room queue, soon (not from within the
 * caller's transaction). */
void waiters_wake_room(struct broker *broker);

/* The connection is gone: the client sends them again when it is back. */
void waiters_drop_session(struct session *session);
