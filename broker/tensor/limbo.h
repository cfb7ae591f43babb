/*
 * The limbo collector: finds slots whose last hold was released.
 *
 * A client that releases a slot in LIMBO sets its pending bit and rings the
 * doorbell; the broker then visits the slots with such bits, not the whole
 * limbo list. When memory is needed, the whole list is walked.
 *
 * A device does not ring. Slots that no session holds but that devices still
 * use are remembered and visited when memory is needed, and by a timer, every 1
 * to 50 ms, which runs only while there are such slots.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct store;
struct holdings;

#define LIMBO_WARN          1000
#define LIMBO_WARN_EVERY_MS 3600000

struct limbo {
	uint64_t warned_ms; /* last warning about more than LIMBO_WARN slots */
	uint32_t n_warnings;
	/* Slots that the collector freed since the start. */
	uint64_t n_collected;
	uint64_t n_rings;
	uint32_t later_position; /* deadline of limbo_collect_later() */
	uint32_t *fenced;        /* slots that only devices still use */
	uint32_t n_fenced, max_fenced;
	bool has_unnoted; /* one was not recorded for lack of memory */
	bool is_looking;
	bool is_slow;      /* a warning about a long wait was logged */
	uint32_t fence_ms; /* delay of the next visit */
	/* When one of them was last freed, or the first one added. */
	uint64_t fenced_ms;
	uint32_t fence_position; /* deadline of that visit */
};

/* Update the states of slots whose bits are set in this session's file, up to a
 * limit. True: there are more, call again from the loop. */
bool limbo_collect_pending(struct store *store, struct holdings *holdings);

/*
 * Update the states of all slots that sessions have released, whether they have
 * rung yet or not, and of those that devices have finished with. Returns the
 * number of slots freed. It is called before memory is refused, and before
 * shards are fed into a collective. Slots in limbo without a bit are held, and
 * cost nothing here. Commits: call it before a request changes anything.
 */
uint32_t limbo_collect_released(struct store *store);

/* Visit the slot again later, since only devices still use it. Idempotent. */
void limbo_watch(struct store *store, uint32_t slot);

/* Update the state of every slot in limbo. Returns the number
 * freed. Commits. */
uint32_t limbo_collect_all(struct store *store);

/* The same in the next round of the loop: slot_settle() found too little space
 * in the journal. */
void limbo_collect_later(struct store *store);

void limbo_deinit(struct limbo *limbo);

/* Called by slot_settle() when the list has grown: warns at long intervals. */
void limbo_note_size(struct store *store);
