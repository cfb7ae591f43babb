/*
 * The exports that torch and others show: which tensor is at an address?
 *
 * Two ask: torch.multiprocessing's pickler, to send a ticket instead of the
 * bytes, and the handler of SIGSEGV, to name the tensor that was written to.
 */
#pragma once
#include "handle.h"
#include <stdbool.h>
#include <stddef.h>

struct range;

/* `handle` is held by the caller, who ends the range before. NULL: there are
 * too many; then nobody finds it. Any thread, no Python. */
struct range *range_new(struct handle *handle, const struct view *view);
void range_end(struct range *range);

/* The handle whose export begins at this address and has this size, with one
 * more user and one more hold; NULL: there is none. */
struct handle *range_find(const void *start, size_t size);

/* The name ("" if it has none) of the read-only tensor at an address; NULL:
 * there is none. A signal handler may call it. */
const char *range_name(const void *address);
