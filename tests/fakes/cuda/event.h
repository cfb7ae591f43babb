/*
 * Events: what was recorded last, done or not. One for several processes keeps
 * that in a page that they share (event_ipc.h).
 *
 * All functions: with the process's lock.
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
	uint64_t ns; /* when */
};

struct event {
	struct context *context;
	CUcontext made_in; /* the context's handle at that time */
	unsigned int flags;
	struct mark *mark;         /* a reference; NULL: not recorded */
	struct event_share *share; /* interprocess, and owned; NULL */
};

/* `share` (or NULL) is the event's if it succeeds. */
CUresult event_new(struct context *context, unsigned int flags,
		   struct event_share *share, CUevent *ret);
struct event *event_find(CUevent handle); /* or NULL */
