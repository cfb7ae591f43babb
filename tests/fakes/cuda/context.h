/*
 * Contexts: the primary one of each device, and the current one of each thread.
 * They are made and destroyed with the first and last reference. A new one has
 * a new handle, and objects of the old one are refused.
 *
 * The caller of each function holds the process's lock.
 */
#pragma once
#include "tests/fakes/cuda/api.h"
#include "tests/fakes/cuda/queue.h"
#include <stdbool.h>

struct memory;
struct stream;

struct context {
	CUdevice device;  /* its ordinal */
	CUcontext handle; /* NULL if the context does not exist now */
	unsigned int n_refs;
	CUresult error; /* stays until the process ends */
	/* all streams that are not destroyed */
	struct stream *streams;
	/* the legacy stream; NULL if not used yet */
	struct stream *legacy;
	struct queue queues[QUEUES_MAX]; /* used by its streams */
	/* device memory that the context uses, or NULL */
	struct memory *overhead;
	int lock_fd; /* ledger_enter() */
};

/* Returns the calling thread's context, even if it has an error, or NULL if
 * there is none that is not destroyed. */
struct context *context_top(void);
/* Returns the same context if it can be used. */
CUresult context_current(struct context **ret);
/* Returns the context's error, or the device's, if it cannot be used. */
CUresult context_check(struct context *context);
/* Record an error of its work. The first error stays. */
void context_fail(struct context *context, CUresult error);

/* Returns the context of a handle, or NULL if it is invalid or destroyed. */
struct context *context_find(CUcontext handle);
/* Returns the context of an ordinal, alive or not. */
struct context *context_of(CUdevice device);
