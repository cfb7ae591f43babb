/*
 * The limbo collector: finds slots whose last hold is gone.
 *
 * A client that releases a slot in LIMBO sets its pending bit and rings; the
 * broker looks at the slots with bits, not at all of limbo. Where room is
 * needed, the whole list is walked.
 *
 * A device does not ring. Slots that nobody holds any more but that devices
 * still work on are remembered, and looked at when room is needed, and at a
 * deadline, 1 to 50 ms apart, which there is only while there are such slots.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct broker;
struct session;

#define LIMBO_WARN          1000
#define LIMBO_WARN_EVERY_MS (3600 * 1000)

struct limbo {
	uint64_t warned_ms; /* that there are more than LIMBO_WARN */
	uint32_t n_warnings;
	uint64_t n_collected; /* slots freed by the collector since start */
	uint64_t n_rings;
	uint32_t later_position; /* deadline of limbo_collect_later() */
	uint32_t *fenced;        /* slots that wait for devices only */
	uint32_t n_fenced, max_fenced;
	bool has_unnoted; /* there was no heap to note one */
	bool is_looking;
	bool is_slow;       /* it was said that they wait long */
	uint32_t fence_ms;  /* until the next look */
	uint64_t fenced_ms; /* when one of them was freed, or the first came */
	uint32_t fence_position; /* that deadline */
};

/* Settle the slots whose bits are set in this session's file, a bounded
 * number. True: there are more, call again from the loop. */
bool limbo_collect_pending(struct broker *broker, struct session *session);

/*
 * Settle what all sessions have released, whether they have rung yet or not,
 * and what devices have done with; gives how many slots were freed. Before
 * memory is refused, and before shards are fed into a collective. What is in
 * limbo without a bit is held: it costs nothing here. Commits: call it before a
 * request changes anything.
 */
uint32_t limbo_collect_released(struct broker *broker);

/* The slot waits for devices only: have it looked at again. Once more is
 * fine. */
void limbo_watch(struct broker *broker, uint32_t slot);

/* Settle every slot in limbo; gives how many were freed. Commits. */
uint32_t limbo_collect_all(struct broker *broker);

/* The same in the next round of the loop: slot_settle() had no room to free. */
void limbo_collect_later(struct broker *broker);

void limbo_deinit(struct limbo *limbo);

/* Called by slot_settle() when the list grew: warns, once in a long while. */
void limbo_note_size(struct broker *broker);
