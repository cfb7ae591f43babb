/*
 * Unsharing: a process that shared memory gets it back when there is no other
 * user.
 *
 * The tensor loses its name and writer and goes to limbo, where it cannot be
 * acquired. The sharer's own hold keeps it there until all other users are
 * gone: holds, views, tickets, fences, and the ready fence of its contents.
 * Then the parked request (verbs/share.c) drops that hold, in the transaction
 * that frees the slot. Until then the request may be given up and repeated;
 * afterwards the tensor no longer exists.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct store;
struct error;

#define UNSHARE_KEY_SIZE 32

/* Writes the key of requests that unshare the slot (waiter.h). */
void unshare_key(uint32_t slot, char ret[UNSHARE_KEY_SIZE]);

/* Records that the sharer wants the slot back. The caller updates the slot's
 * state. */
void unshare_begin(struct store *store, uint32_t slot);

/* Returns whether the sharer's hold is the last use. If only devices still use
 * the slot, they are watched. */
bool unshare_is_ready(struct store *store, uint32_t slot);

/* Sets `err` to -ETIMEDOUT, with the remaining users. */
int unshare_explain(const struct store *store, uint32_t slot,
		    struct error *err);

/* Wakes the parked request if the use that has just ended was the last. It has
 * no effect unless the sharer wants the slot back. */
void unshare_look(struct store *store, uint32_t slot);
/* Ends the unsharing of a slot that is being freed. */
void unshare_end(struct store *store, uint32_t slot);
