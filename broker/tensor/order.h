/*
 * Orders: when the contents of a tensor are there.
 *
 * Who publishes a tensor whose writing is still queued on a device says which
 * value of which of its timelines (shm/timeline.h) the work ends with. Readers
 * have their own streams wait for that; the broker looks at the counter only
 * when it must know: before memory is used again, and when the session ends.
 *
 * An order is of a living session, whose file the broker has mapped. When the
 * session ends, what was not reached never will be: the tensor is tainted, for
 * all to see in the state table, before the poison in the file lets go of those
 * who wait.
 *
 * A device without 64-bit stream memory operations cannot write a timeline.
 * There the order is by an interprocess event (cuda/event_ipc.h), of which the
 * broker keeps the handle for those who ask, and cannot look at it: the
 * contents are there when the producer says so. That is a fact which stays one,
 * so it may be said twice, or of what is not ordered so any more; and since the
 * producer drops the event only when it was told that this is known (after the
 * commit), whoever cannot open an event any more finds the tensor unordered or,
 * if the producer died, tainted. A death between the device's work and the word
 * taints what is good, never the other way round.
 */
#pragma once
#include "proto/message.h"
#include <stdbool.h>
#include <stdint.h>

struct store;

/* The contents are there when the session (record) has come so far; instead
 * of an earlier order. The session has timelines. */
void order_set(struct store *store, uint32_t slot, uint32_t session,
	       uint32_t timeline, uint64_t value);

/* Or when an event of that number, above 0, is done. `event`: a blob with its
 * handle, ORDER_EVENT_SIZE, which is the order's from now on. */
#define ORDER_EVENT_SIZE MESSAGE_HANDLE_SIZE
void order_set_event(struct store *store, uint32_t slot, uint32_t session,
		     uint64_t number, uint64_t event);

/* The session says that the event is done: end one order by it, of a view of
 * the slot or at last of the slot itself. Returns the slot that had it, whose
 * state the caller updates before the next call; 0: no (more) order by it. */
uint32_t order_end_event(struct store *store, uint32_t slot, uint32_t session,
			 uint64_t number);

/* The handle of the event that orders the slot; NULL: none does. */
const uint8_t *order_event(const struct store *store, uint32_t slot);

/* A view is ordered, and tainted, as what it views. */
void order_copy(struct store *store, uint32_t from, uint32_t to);

/* Are the contents still to come? */
bool order_is_pending(const struct store *store, uint32_t slot);

/* What a reader has to wait for; session 0: nothing. */
void order_describe(const struct store *store, uint32_t slot,
		    struct tensor_order *ret);

/* The slot is freed. Nothing if it has none. */
void order_end(struct store *store, uint32_t slot);

/* The session ends, and its device work has ended: end its next order, and
 * taint the slot if the order was not reached. Returns the slot, whose state
 * the caller updates; 0: there are no more. */
uint32_t order_end_next(struct store *store, uint32_t session);
