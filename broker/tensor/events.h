/*
 * Events: recent changes of names, for sessions that watch.
 *
 * The last EVENTS_KEPT events are in a ring, each with its number. Nothing is
 * recorded while no session watches. After a restart of the broker, the numbers
 * continue after a gap, so a session that asks for events that are no longer in
 * the ring learns that some are lost.
 *
 * Recording an event does not wake the watchers by itself: a deadline wakes all
 * parked requests at most every few milliseconds, however many names change
 * meanwhile.
 */
#pragma once
#include "broker/catalog/catalog.h"
#include "proto/message.h"
#include "proto/name.h"
#include <stdint.h>

struct store;
struct error;

#define EVENTS_KEPT 4096
/* The key of the parked requests. It cannot be a name, since no name begins
 * with a slash. */
#define EVENTS_KEY "//events"

struct noted_event {
	uint64_t at_ms, version;
	struct access_class access;
	uint32_t kind; /* enum name_event */
	char name[NAME_MAX_SIZE + 1];
};

struct events {
	/* event i is at i % EVENTS_KEPT; NULL: no events are kept */
	struct noted_event *ring;
	uint64_t first, next;   /* numbers of the oldest and the next event */
	uint32_t n_watchers;    /* sessions that asked for events */
	uint32_t wake_position; /* of the deadline that wakes requests */
};

/* Registers one more session that watches: events are kept from now on.
 * -ENOMEM. */
int events_watch(struct store *store, struct error *err);
/* Unregisters a session that watched. */
void events_unwatch(struct store *store);

/* Records a change of the name of a slot or bundle. Call it after the name has
 * begun, or before it ends. */
void events_note_slot(struct store *store, uint32_t slot, enum name_event kind);
void events_note_bundle(struct store *store, uint32_t bundle,
			enum name_event kind);

void events_deinit(struct events *events);
