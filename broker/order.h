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
 */
#pragma once
#include "proto/message.h"
#include <stdbool.h>
#include <stdint.h>

struct broker;

/* The contents are there when the session (record) has come so far; instead
 * of an earlier order. The session has timelines. */
void order_set(struct broker *broker, uint32_t slot, uint32_t session,
	       uint32_t timeline, uint64_t value);

/* A view is ordered, and tainted, as what it views. */
void order_copy(struct broker *broker, uint32_t from, uint32_t to);

/* Are the contents still to come? */
bool order_is_pending(const struct broker *broker, uint32_t slot);

/* What a reader has to wait for; session 0: nothing. */
void order_describe(const struct broker *broker, uint32_t slot,
		    struct tensor_order *ret);

/* The slot is freed. Nothing if it has none. */
void order_end(struct broker *broker, uint32_t slot);

/* The session ends, its device work has ended: taint what was not reached.
 * Commits in steps. */
void order_end_session(struct broker *broker, uint32_t session);
