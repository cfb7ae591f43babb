/*
 * Releases on streams of devices that cannot write timelines. On such a device
 * no fence can tell when a stream has passed a release, so the hold stays until
 * an event after the stream's work is complete. The completion of an event
 * wakes no thread: later calls look for it.
 */
#pragma once
#include "client/stream_list.h"
#include <stdint.h>

struct error;
struct fsdp_client;

/* The maximum number of holds that wait for streams. */
#define DEFERRED_MAX 1000

/* Drop the events; the holds end with the session. */
void deferred_deinit(struct stream_list *list);

/* Drop one hold of the slot when `stream` of the device has finished its work
 * so far. The caller must have taken this hold from the handle. -EAGAIN:
 * DEFERRED_MAX holds are waiting already. */
int deferred_add(struct fsdp_client *client, uint32_t slot,
		 const struct device *device, void *stream, struct error *err);

/* Drop the holds whose streams have reached their release. Never waits. */
void deferred_collect(struct fsdp_client *client);
