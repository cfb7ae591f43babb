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
	CUresult error; /* first error; it stays until the process ends */
	/* all streams that were not destroyed */
	struct stream *streams;
	/* the legacy stream; NULL until it is used */
	struct stream *legacy;
	struct queue queues[QUEUES_MAX]; /* the queues of its streams */
	/* device memory that the context uses, or NULL */
	struct memory *overhead;
	int lock_fd; /* descriptor of ledger_enter() */
};

/* Returns the calling thread's context, even if it has an error. Returns NULL
 * if the thread has no context, or only destroyed ones. */
struct context *context_top(void);
/* Returns the same context if it can be used. */
CUresult context_current(struct context **ret);
/* Returns the error of the context or of its device if it cannot be used. */
CUresult context_check(struct context *context);
/* Records an error of its work. The first error stays. */
void context_fail(struct context *context, CUresult error);

/* Returns the context of a handle, or NULL if it is invalid or destroyed. */
struct context *context_find(CUcontext handle);
/* Returns the context of an ordinal, whether it exists now or not. */
struct context *context_of(CUdevice device);
