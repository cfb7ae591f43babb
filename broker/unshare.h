/*
 * Unsharing: whoever shared memory wants to know when nobody uses it any more.
 *
 * The tensor loses its name and writer and is in limbo, where nobody can
 * acquire it. The sharer's own hold keeps it there until all else has gone:
 * others' holds, views, tickets, fences, and the order of its own writing. Then
 * the request that waits for it (verbs/share.c) drops that hold, in the
 * transaction that frees the slot; so until then the request may be given up
 * and repeated, and after it there is no such tensor.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct broker;
struct error;

#define UNSHARE_KEY_SIZE 32

/* What requests that unshare the slot wait for (waiter.h). */
void unshare_key(uint32_t slot, char ret[UNSHARE_KEY_SIZE]);

/* Its sharer wants it back. The caller settles. */
void unshare_begin(struct broker *broker, uint32_t slot);

/* Does nobody use it but by the sharer's hold? Has devices looked after that
 * are all that is left. */
bool unshare_is_ready(struct broker *broker, uint32_t slot);

/* A sentence, -ETIMEDOUT, of what is in the way. */
int unshare_explain(const struct broker *broker, uint32_t slot,
		    struct error *err);

/* Something about a slot has changed that is in use: tell who waits, if that
 * was the last. Nothing if nobody wants it back. */
void unshare_look(struct broker *broker, uint32_t slot);
/* The slot is freed. */
void unshare_end(struct broker *broker, uint32_t slot);
