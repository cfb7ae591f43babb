/*
 * The limbo collector: finds slots whose last hold is gone.
 *
 * A client that releases a slot in LIMBO sets its pending bit and rings; the
 * broker looks at the slots with bits, not at all of limbo. Where room is
 * needed, the whole list is walked.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct broker;
struct session;

#define LIMBO_WARN 1000

struct limbo {
	bool is_warned;       /* above LIMBO_WARN; once per crossing */
	uint64_t n_collected; /* slots freed by the collector since start */
	uint64_t n_rings;
	uint32_t n_evictable; /* names that may be evicted; 0 spares the search
			       */
	uint32_t hand;        /* slot that the eviction clock looked at last */
	uint32_t later_position; /* deadline of limbo_collect_later() */
};

/* Settle the slots whose bits are set in this session's file, a bounded
 * number. True: there are more, call again from the loop. */
bool limbo_collect_pending(struct broker *broker, struct session *session);

/*
 * Settle what all sessions have released, whether they have rung yet or not;
 * gives how many slots were freed. Before memory is refused, and before shards
 * are fed into a collective. What is in limbo without a bit is held: it costs
 * nothing here. Commits: call it before a request changes anything.
 */
uint32_t limbo_collect_released(struct broker *broker);

/* Settle every slot in limbo; gives how many were freed. Commits. */
uint32_t limbo_collect_all(struct broker *broker);

/* The same in the next round of the loop: slot_settle() had no room to free. */
void limbo_collect_later(struct broker *broker);

/*
 * Let go of evictable tensors (`uid` not NULL: of those charged to it) until
 * `bytes` are freed or none is left: CLOCK, second chance by the era in which
 * any session last acquired. A tensor that somebody holds goes back to
 * PUBLISHED. Gives the bytes freed. Commits, as limbo_collect_all() does.
 */
uint64_t limbo_evict(struct broker *broker, uint64_t bytes,
		     const uint32_t *uid);

/* Called by slot_settle() when the list grew or shrank: the warning. */
void limbo_note_size(struct broker *broker);
