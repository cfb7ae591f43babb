/*
 * An index of the exports that torch and others show, by address.
 *
 * It has two users: the pickler of torch.multiprocessing sends a ticket instead
 * of the bytes, and the handler of SIGSEGV prints the name of the tensor that
 * was written to, or that a forked child has not inherited.
 */
#pragma once
#include "handle.h"
#include <stdbool.h>
#include <stddef.h>

struct range;

/* Adds a range. The caller has a hold of `handle`, and ends the range before it
 * drops the hold. Returns NULL if there are too many ranges; the export is not
 * found then. This calls no Python, and any thread may call it. */
struct range *range_new(struct handle *handle, const struct view *view);
void range_end(struct range *range);

/* Returns the handle whose export begins at this address and has this size,
 * with a user and a hold for the caller, or NULL. */
struct handle *range_find(const void *start, size_t size);

/* Returns the name of the tensor at an address ("" if it has no name), or NULL
 * if there is no tensor. A signal handler may call this. */
const char *range_name(const void *address);
