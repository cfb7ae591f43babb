/*
 * Memory that the broker makes for collectives: shards, whole parameters,
 * gradients.
 *
 * It is a slot like any other (bytes, one-dimensional, without a name), so
 * that what clients do with it is held, counted and collected as everything
 * else is. It is charged to the user who made the communicator.
 */
#pragma once
#include "proto/message.h"
#include <stdint.h>

struct store;
struct error;

struct storage_request {
	struct access_class access; /* with the real uid */
	uint32_t uid;               /* charged */
	uint64_t size;              /* bytes; 0 counts as 1 */
	struct device_uuid device;  /* where; all 0: host memory */
};

/* Make `n` of them or none, each pinned once. Returns as room_take(); commits.
 */
int storage_make_all(struct store *store, const struct storage_request *request,
		     uint32_t n, uint32_t *ret_slots, struct error *err);

/* The same for one. */
int storage_make(struct store *store, const struct storage_request *request,
		 uint32_t *ret_slot, struct error *err);
