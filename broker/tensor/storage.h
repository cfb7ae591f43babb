/*
 * Memory that the broker makes for collectives: shards, whole parameters,
 * gradients.
 *
 * Each piece is a slot like any other (bytes, one-dimensional, without a name),
 * so it is held, counted and collected like any other. It is charged to the
 * user who made the communicator.
 */
#pragma once
#include "proto/message.h"
#include <stdint.h>

struct store;
struct error;

struct storage_request {
	struct access_class access; /* with the real uid */
	uint32_t uid;               /* the user to charge */
	uint64_t size;              /* bytes; 0 counts as 1 */
	struct device_uuid device;  /* all 0: host memory */
};

/* Makes `n` slots or none of them, each pinned once. Returns as room_take();
 * commits. */
int storage_make_all(struct store *store, const struct storage_request *request,
		     uint32_t n, uint32_t *ret_slots, struct error *err);

/* Does the same for one slot. */
int storage_make(struct store *store, const struct storage_request *request,
		 uint32_t *ret_slot, struct error *err);
