/*
 * Requests about devices, as raw frames: see wire.h. The process that sends
 * them has no driver; what its devices do, it does itself.
 */
#pragma once
#include "shm/refs.h"
#include "shm/timeline.h"
#include "tests/lib/wire.h"

/* The i-th device that the broker has, once it has loaded the driver. */
struct device_uuid wire_gpu(struct wire *wire, uint32_t i);
/* What its status notes; until the next request. */
const char *wire_note(struct wire *wire);

/* Each gives the code. */
int wire_alloc_on(struct wire *wire, const struct device_uuid *device,
		  int64_t size, int32_t timeout_ms, struct tensor_place *ret);
/* With a name ("": none) and when it will be written. */
int wire_publish_at(struct wire *wire, const struct slot_ref *ref,
		    const char *name, uint32_t timeline, uint64_t value);
/* The file of a session's timelines (0: one's own), mapped. */
int wire_timelines(struct wire *wire, uint64_t session,
		   const struct slot_ref *ref, bool is_writable,
		   struct timelines *ret);
/* One's session again, after the broker was started anew. */
int wire_resume(struct wire **wire, const char *path);

/* What a device does to a counter. */
void wire_reach(struct timelines *timelines, uint32_t timeline, uint64_t value);
/* Release what a device reads until then; rings if it must. */
void wire_release_at(struct wire *wire, const struct slot_ref *ref,
		     uint32_t timeline, uint64_t value);
/* The slot's word in the state table. */
uint64_t wire_word(struct wire *wire, uint32_t slot);
