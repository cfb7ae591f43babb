/*
 * Events: what happened to names lately, for sessions that watch.
 *
 * The last EVENTS_KEPT events are in a ring, each with its number. Nothing is
 * recorded while no session watches. Numbers go on after a restart of the
 * broker, with a gap, so a session that asks for events that the ring does not
 * have learns that some are lost.
 *
 * Recording wakes nobody by itself: a deadline wakes all parked requests at
 * most every few milliseconds, however many names change meanwhile.
 */
#pragma once
#include "broker/catalog/catalog.h"
#include "proto/message.h"
#include "proto/name.h"
#include <stdint.h>

struct store;
struct error;

#define EVENTS_KEPT 4096
/* The key of parked requests; no name begins with a slash. */
#define EVENTS_KEY "//events"

struct noted_event {
	uint64_t at_ms, version;
	struct access_class access;
	uint32_t kind; /* enum name_event */
	char name[NAME_MAX_SIZE + 1];
};

struct events {
	struct noted_event
		*ring; /* event i is at i % EVENTS_KEPT; NULL: not kept */
	uint64_t first, next;   /* numbers: of the oldest, of the next */
	uint32_t n_watchers;    /* sessions that asked for events */
	uint32_t wake_position; /* of the deadline that wakes requests */
};

/* One more session watches: events are kept from now on. -ENOMEM. */
int events_watch(struct store *store, struct error *err);
/* One of them has ended. */
void events_unwatch(struct store *store);

/* Something happened to the name of a slot, or of a bundle. Call it before the
 * name ends, or after it has begun. */
void events_note_slot(struct store *store, uint32_t slot, enum name_event kind);
void events_note_bundle(struct store *store, uint32_t bundle,
			enum name_event kind);

void events_deinit(struct events *events);
