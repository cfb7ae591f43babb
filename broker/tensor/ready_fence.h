/*
 * Ready fences: the times from which the contents of tensors are complete.
 *
 * A process that publishes a tensor whose writes are still queued on a device
 * names a timeline of its session (shm/timeline.h) and the value that the
 * timeline has when the writes are done. The streams of readers wait for that
 * value. The broker reads the counter only before memory is used again, and
 * when the session ends.
 *
 * A ready fence belongs to a session whose process lives and whose file the
 * broker has mapped. When the session ends, a fence that was not reached never
 * will be: the broker marks the tensor as tainted in the state table, and then
 * poisons the file, which wakes the waiting streams.
 *
 * A device without 64-bit stream memory operations cannot write a timeline.
 * There the fence is an interprocess event (cuda/event_ipc.h). The broker keeps
 * its handle for readers, but cannot query it: the contents are complete when
 * the producer reports so. The report may come twice, or after the fence has
 * ended, since it stays true. The producer destroys the event only after the
 * broker has committed the report, so a reader that cannot open the event finds
 * the tensor without a fence or, if the producer died, tainted. If the producer
 * dies between the end of the device's work and the report, complete contents
 * are marked as tainted; incomplete contents are never taken for complete.
 */
#pragma once
#include "proto/message.h"
#include <stdbool.h>
#include <stdint.h>

struct store;

/* Sets the fence of a slot: the contents are complete when a timeline of the
 * session (record) has reached the value. It replaces an earlier fence. The
 * session has timelines. */
void ready_fence_set(struct store *store, uint32_t slot, uint32_t session,
		     uint32_t timeline, uint64_t value);

/* Does the same for an event with that number, which is above 0. `event` is a
 * blob of FENCE_EVENT_SIZE bytes with its handle; the fence takes it. */
#define FENCE_EVENT_SIZE MESSAGE_HANDLE_SIZE
void ready_fence_set_event(struct store *store, uint32_t slot, uint32_t session,
			   uint64_t number, uint64_t event);

/* Ends one fence by an event that the session reports to be complete: a fence
 * of a view of the slot, or, when these have ended, that of the slot itself.
 * Returns the slot of the fence, whose state the caller updates before the next
 * call; 0: there is no further fence. */
uint32_t ready_fence_end_event(struct store *store, uint32_t slot,
			       uint32_t session, uint64_t number);

/* Returns the handle of the event that the slot has as its fence, or NULL if it
 * has no event. */
const uint8_t *ready_fence_event(const struct store *store, uint32_t slot);

/* Gives the view `to` the fence of `from`. The view is tainted together with
 * `from`. */
void ready_fence_copy(struct store *store, uint32_t from, uint32_t to);

/* Returns how many views depend on the event that the fence of the slot is. A
 * request that would change more than this number at once is refused, since
 * the journal is limited. */
#define FENCE_MAX_COPIES 4096
uint32_t ready_fence_n_copies(const struct store *store, uint32_t slot);

/* Returns whether the contents are incomplete. */
bool ready_fence_is_pending(const struct store *store, uint32_t slot);

/* Describes the fence for which a reader must wait; session 0: there is
 * none. */
void ready_fence_describe(const struct store *store, uint32_t slot,
			  struct fence *ret);

/* Ends the fence of a slot that is being freed, if it has one. */
void ready_fence_end(struct store *store, uint32_t slot);

/* Ends the next fence of a session that ends and whose device work has ended,
 * and taints the slot if the fence was not reached. Returns the slot, whose
 * state the caller updates; 0: there is no further fence. */
uint32_t ready_fence_end_next(struct store *store, uint32_t session);
