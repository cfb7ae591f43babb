/*
 * Interprocess events. Each is a page in the ledger's folder, which all
 * processes that use the event map. Records are numbered over all processes. A
 * record is done when its number is in its place of the ring, or when a later
 * record has replaced it there. If a process dies before its record is done,
 * waiters wait forever, as they may with a driver.
 *
 * The caller of each function holds the process's lock.
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
	atomic_uint is_destroyed; /* set by its maker */
	_Atomic uint64_t n_recorded;
	_Atomic uint64_t done[EVENT_RING];
};

/* A process's mapping of an event. */
struct event_share {
	/* references of the event, and of work that runs */
	unsigned int n_refs;
	struct event_page *page;
	char name[LEDGER_NAME_SIZE]; /* "" if another process made it */
};

CUresult event_share_create(struct event_share **ret);
/* Unmaps a destroyed event. If this process made the event, other processes can
 * no longer use it. */
void event_share_destroy(struct event_share *share);
void event_share_unref(struct event_share *share);

CUresult event_share_record(struct event_share *share, struct stream *stream);
CUresult event_share_wait(struct event_share *share, struct stream *stream);
/* Returns whether record n is done. 0 means the last one. */
bool event_share_is_done(const struct event_share *share, uint64_t n);
