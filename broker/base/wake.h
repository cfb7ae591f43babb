/*
 * Waking what waits for memory or for a name: requests (session/waiter.h) and
 * communicators (comm/comm.h).
 *
 * Whatever waits lies in a room above those that make memory and names, so they
 * announce events through these hooks. broker.c sets them; a test may set its
 * own. A hook only notes what is to be done: it may be called within a
 * transaction, and neither commits nor changes the catalog; on_short is the
 * exception.
 */
#pragma once
#include <stdint.h>

struct wake {
	void *data;
	/* Memory was freed or made, or an attempt to make some has ended. */
	void (*on_room)(void *data);
	/* A name was published (that of a bundle ends with '/'), or the event
	 * of this key has happened. */
	void (*on_name)(void *data, const char *name);
	/* After on_room this asks for one more round of reruns, even if nothing
	 * waits (evict.h). */
	void (*on_round)(void *data);
	/* There is no host memory for an attempt to make some. If `uid` is not
	 * NULL, only the quota of that user is used up. The hook may commit. */
	void (*on_short)(void *data, const uint32_t *uid);
};

void wake_room(const struct wake *wake);
void wake_name(const struct wake *wake, const char *name);
void wake_round(const struct wake *wake);
void wake_short(const struct wake *wake, const uint32_t *uid);

/* The key of requests that wait until a thread has finished something for this
 * user; the second function wakes them. */
#define WAKE_UID_KEY_SIZE 24
void wake_uid_key(uint32_t uid, char ret[WAKE_UID_KEY_SIZE]);
void wake_uid(const struct wake *wake, uint32_t uid);
