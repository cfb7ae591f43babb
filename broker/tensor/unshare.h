/*
 * Unsharing: a process that shared memory gets it back when no other user is
 * left.
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

/* The key of requests that unshare the slot (waiter.h). */
void unshare_key(uint32_t slot, char ret[UNSHARE_KEY_SIZE]);

/* The sharer wants the slot back. The caller updates the slot's state. */
void unshare_begin(struct store *store, uint32_t slot);

/* Is the sharer's hold the last use? If only devices still use the slot, they
 * are watched. */
bool unshare_is_ready(struct store *store, uint32_t slot);

/* Set `err` to -ETIMEDOUT and the remaining users. */
int unshare_explain(const struct store *store, uint32_t slot,
		    struct error *err);

/* A use of the slot has ended: wake the parked request if it was the last. No
 * effect unless the sharer wants the slot back. */
void unshare_look(struct store *store, uint32_t slot);
/* The slot is being freed. */
void unshare_end(struct store *store, uint32_t slot);
