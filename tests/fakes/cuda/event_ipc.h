/*
 * Interprocess events: a page in the ledger's folder, which all who have the
 * event map.
 *
 * Records are numbered, over all processes. Each is done when its number is in
 * its place of the ring; a place taken over by a later one is as good. A
 * process that dies with a record under way leaves waiters alone for ever, as
 * a driver may.
 *
 * All functions: with the process's lock.
 */
#pragma once
#include "tests/fakes/cuda/api.h"
#include "tests/fakes/cuda/ledger.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct stream;

#define EVENT_RING 64

struct event_page {
	uint64_t magic;
	atomic_uint is_destroyed; /* by its maker */
	_Atomic uint64_t n_recorded;
	_Atomic uint64_t done[EVENT_RING];
};

/* A process's mapping of one. */
struct event_share {
	unsigned int n_refs; /* the event's, and of work under way */
	struct event_page *page;
	char name[LEDGER_NAME_SIZE]; /* "": it is somebody else's */
};

CUresult event_share_create(struct event_share **ret);
/* The event is destroyed: let go of it, and if it was one's own, others must
 * not use it any more. */
void event_share_destroy(struct event_share *share);
void event_share_unref(struct event_share *share);

CUresult event_share_record(struct event_share *share, struct stream *stream);
CUresult event_share_wait(struct event_share *share, struct stream *stream);
/* Is record n done? 0: the last one. */
bool event_share_is_done(const struct event_share *share, uint64_t n);
