/*
 * Is this process a forked child? The kernel wipes a page at fork
 * (MADV_WIPEONFORK), also if the child came from a raw clone() that no atfork
 * handler sees. The check is one load.
 */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct error;

struct guard {
	_Atomic uint32_t *word; /* a page of its own; NULL when closed */
};

#define GUARD_NULL ((struct guard){NULL})

int guard_open(struct guard *ret, struct error *err);
void guard_close(struct guard *guard);

static inline bool guard_is_forked(const struct guard *guard)
{
	/* Relaxed: it changes only while no thread of the child runs. */
	return !atomic_load_explicit(guard->word, memory_order_relaxed);
}
