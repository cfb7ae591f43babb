/*
 * Contexts: the primary one of each device, and which of them is current in a
 * thread. They are made and destroyed with the first and last reference; a new
 * one has a new handle, and things of the old one are refused.
 *
 * All functions: with the process's lock.
 */
#pragma once
#include "tests/fakes/cuda/api.h"
#include "tests/fakes/cuda/queue.h"
#include <stdbool.h>

struct memory;
struct stream;

struct context {
	CUdevice device;  /* its ordinal */
	CUcontext handle; /* NULL: there is none now */
	unsigned int n_refs;
	CUresult error;                  /* sticky; for the process's life */
	struct stream *streams;          /* all that are not destroyed */
	struct stream *legacy;           /* one of them; NULL: not used yet */
	struct queue queues[QUEUES_MAX]; /* of its streams */
	struct memory *overhead;         /* what it takes of the device; NULL */
	int lock_fd;                     /* ledger_enter() */
};

/* The calling thread's, whatever has become of it; NULL: none, or none that is
 * not destroyed. */
struct context *context_top(void);
/* The same if it can be used. */
CUresult context_current(struct context **ret);
/* Can it be used: its error, or the device's. */
CUresult context_check(struct context *context);
/* Work of it went wrong. The first error stays. */
void context_fail(struct context *context, CUresult error);

/* That of a handle; NULL: it is none, or is destroyed. */
struct context *context_find(CUcontext handle);
/* That of an ordinal, alive or not. */
struct context *context_of(CUdevice device);
