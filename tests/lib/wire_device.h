/*
 * Requests for devices, as raw frames; see wire.h. The process that sends them
 * has no driver; it does the work of its devices itself.
 */
#pragma once
#include "shm/refs.h"
#include "shm/timeline.h"
#include "tests/lib/wire.h"

/* Returns the i-th device of the broker, once the broker has loaded the
 * driver. */
struct device_uuid wire_gpu(struct wire *wire, uint32_t i);
/* Returns the note of its status, which is valid until the next request. */
const char *wire_note(struct wire *wire);

/* Each function returns the code. */
int wire_alloc_on(struct wire *wire, const struct device_uuid *device,
		  int64_t size, int32_t timeout_ms, struct tensor_place *ret);
/* Publishes under a name ("" publishes none), with the timeline value at which
 * the contents will be complete. */
int wire_publish_at(struct wire *wire, const struct slot_ref *ref,
		    const char *name, uint32_t timeline, uint64_t value);
/* Maps the file of a session's timelines. `session` 0 means the caller's
 * own. */
int wire_timelines(struct wire *wire, uint64_t session,
		   const struct slot_ref *ref, bool is_writable,
		   struct timelines *ret);
/* Reconnects to the own session after the broker was started again. */
int wire_resume(struct wire **wire, const char *path);

/* Sets a counter as a device would. */
void wire_reach(struct timelines *timelines, uint32_t timeline, uint64_t value);
/* Releases a tensor that a device reads until then. Rings the doorbell if
 * needed. */
void wire_release_at(struct wire *wire, const struct slot_ref *ref,
		     uint32_t timeline, uint64_t value);
/* Returns the slot's word in the state table. */
uint64_t wire_word(struct wire *wire, uint32_t slot);
