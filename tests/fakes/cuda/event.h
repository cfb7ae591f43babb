/*
 * Events, each with its last record, which is done or not. An interprocess
 * event keeps this in a page that processes share (event_ipc.h).
 *
 * The caller of each function holds the process's lock.
 */
#pragma once
#include "tests/fakes/cuda/api.h"
#include <stdbool.h>
#include <stdint.h>

struct context;
struct event_share;

struct mark {
	unsigned int n_refs;
	bool is_done;
	uint64_t ns; /* time at which it was done */
};

struct event {
	struct context *context;
	CUcontext made_in; /* the context's handle at that time */
	unsigned int flags;
	struct mark *mark; /* a reference; NULL if never recorded */
	/* owned by an interprocess event; NULL for other events */
	struct event_share *share;
};

/* If it succeeds, the event owns `share`, which may be NULL. */
CUresult event_new(struct context *context, unsigned int flags,
		   struct event_share *share, CUevent *ret);
struct event *event_find(CUevent handle); /* returns the event or NULL */
