/*
 * Detects whether this process is a forked child. The kernel wipes a page at
 * fork (MADV_WIPEONFORK), also if the child was made by a raw clone(), for
 * which no atfork handler runs. The check is one load.
 */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct error;

struct guard {
	_Atomic uint32_t *word; /* in a page of its own; NULL when closed */
};

#define GUARD_NULL ((struct guard){NULL})

int guard_open(struct guard *ret, struct error *err);
void guard_close(struct guard *guard);

static inline bool guard_is_forked(const struct guard *guard)
{
	/* Relaxed: the word changes only at the fork. */
	return !atomic_load_explicit(guard->word, memory_order_relaxed);
}
