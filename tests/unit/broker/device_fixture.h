/*
 * A broker in the test's own process (broker_fixture.h) that has loaded the
 * driver, or found none; and sessions with timelines, whose counters the test
 * sets as a device would.
 */
#pragma once
#include "broker/tensor/timeline_file.h"
#include "tests/lib/gpu.h"
#include "tests/unit/broker/broker_fixture.h"

/* Wait until the driver is loaded, or could not be. */
void broker_await_driver(struct broker *self);

void broker_load_driver(struct broker *self);

struct device_uuid broker_gpu(struct broker *self, uint32_t i);

/* Allocate `n` bytes on a device, by request. Returns the code. */
int client_alloc_on(struct client *client, const struct device_uuid *device,
		    uint64_t n, int32_t timeout_ms, struct slot_ref *ret);

/* Get the timelines by request. Returns the code. */
int client_timelines(struct client *client, uint64_t session,
		     const struct slot_ref *ref, bool is_writable);

/* Set the counter as the client's device does when it reaches this point. */
void client_reach(struct client *client, uint32_t timeline, uint64_t value);

/* Publish a tensor that a device still writes. Returns the code. */
int client_publish_at(struct client *client, const struct slot_ref *ref,
		      const char *name, uint32_t timeline, uint64_t value);

/* Release a tensor that a device still reads, without a request, and ring the
 * broker. */
void client_release_at(struct client *client, const struct slot_ref *ref,
		       uint32_t timeline, uint64_t value);

uint64_t client_session_id(const struct client *client);

/* Get a tensor by name, with a hold, and return its ready fence. */
struct tensor_place client_get_place(struct client *client, const char *name);
