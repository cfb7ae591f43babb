/*
 * Wake-ups for requests (session/waiter.h) and communicators (comm/comm.h) that
 * wait for memory or for a name.
 *
 * The waiting code is in higher folders than the code that makes memory and
 * names, so the latter announces events through these hooks. broker.c sets
 * them; a test may set its own. A hook only notes what is to be done: it may be
 * called within a transaction, and neither commits nor changes the catalog.
 * on_short is the exception.
 */
#pragma once
#include <stdint.h>

struct wake {
	void *data;
	/* Is called when memory was freed or made, or when an attempt to make
	 * some has ended. */
	void (*on_room)(void *data);
	/* Is called when a name was published (that of a bundle ends with '/'),
	 * or when the event of this key has happened. */
	void (*on_name)(void *data, const char *name);
	/* Is called after on_room to ask for one more round of reruns, even if
	 * no request waits (evict.h). */
	void (*on_round)(void *data);
	/* Is called when there is no host memory for an attempt to make some.
	 * If `uid` is not NULL, only the quota of that user is used up. The
	 * hook may commit. */
	void (*on_short)(void *data, const uint32_t *uid);
};

void wake_room(const struct wake *wake);
void wake_name(const struct wake *wake, const char *name);
void wake_round(const struct wake *wake);
void wake_short(const struct wake *wake, const uint32_t *uid);

/* wake_uid_key() writes the key of requests that wait until a thread has
 * finished something for this user. wake_uid() wakes them. */
#define WAKE_UID_KEY_SIZE 24
void wake_uid_key(uint32_t uid, char ret[WAKE_UID_KEY_SIZE]);
void wake_uid(const struct wake *wake, uint32_t uid);
