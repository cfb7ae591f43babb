/*
 * The limbo collector selects the slots whose state is updated. Each update is
 * consistent by itself, so it is committed by itself; the journal then stays
 * within the CPU's cache.
 */
#include "broker/tensor/limbo.h"
#include "broker/tensor/slot.h"
#include "broker/tensor/store.h"
#include "proto/point.h"
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define PENDING_PER_ROUND 256
/* A limit, since any client can set a million bits in no time. */
#define PENDING_PER_CALL 65536
/* Device slots visited per round, and the bounds of the interval. */
#define FENCED_PER_ROUND 4096
#define FIRST_FENCE_MS   1
#define LAST_FENCE_MS    50
/* Work that ends takes less time than this. */
#define SLOW_FENCE_MS 30000

/* Visit a bounded number of pending bits. Returns the number of bits. */
static uint32_t settle_pending(struct store *store, struct holdings *holdings)
{
	struct catalog *catalog = &store->catalog;
	uint32_t n_slots = catalog_n_touched(catalog, SECTION_SLOT);
	uint32_t slots[PENDING_PER_ROUND];
	uint32_t n, i;

	if (!holdings->refs.bitmap)
		return 0;
	n = refs_take_pending(&holdings->refs, slots, PENDING_PER_ROUND);
	for (i = 0; i < n; i++) {
		/* The client sets the bits: of any slot, in any state. */
		if (slots[i] == 0 || slots[i] > n_slots)
			continue;
		if (slot_settle(store, slots[i]))
			store->limbo.n_collected++;
		catalog_commit(catalog);
	}
	return n;
}

bool limbo_collect_pending(struct store *store, struct holdings *holdings)
{
	store->limbo.n_rings++;
	return settle_pending(store, holdings) == PENDING_PER_ROUND;
}

/* --- devices ------------------------------------------------------------- */

static void plan_look(struct store *store);

static void note_slowness(struct store *store)
{
	struct limbo *limbo = &store->limbo;

	if (limbo->is_slow || now_ms() - limbo->fenced_ms < SLOW_FENCE_MS)
		return;
	limbo->is_slow = true;
	log_line(LOG_LEVEL_WARNING,
		 "%u tensors that nobody holds have waited %d s for work on "
		 "devices that does not end; `fsdpctl limbo` shows them, and "
		 "they are freed when the processes that gave the work end",
		 limbo->n_fenced, SLOW_FENCE_MS / 1000);
}

/* Visit the first `n` again; those still in use go to the end. Returns the
 * number of slots freed. */
static uint32_t settle_fenced(struct store *store, uint32_t n)
{
	struct catalog *catalog = &store->catalog;
	struct limbo *limbo = &store->limbo;
	uint32_t n_freed = 0;

	for (uint32_t i = 0; i < n; i++) {
		uint32_t slot = limbo->fenced[i];

		catalog_slot(catalog, slot)->is_fenced = 0;
		if (slot_settle(store, slot))
			n_freed++;
		catalog_commit(catalog);
	}
	limbo->n_fenced -= n;
	if (n > 0)
		memmove(limbo->fenced, limbo->fenced + n,
			limbo->n_fenced * sizeof(*limbo->fenced));
	limbo->n_collected += n_freed;
	if (n_freed) {
		limbo->fenced_ms = now_ms();
		limbo->is_slow = false;
	}
	return n_freed;
}

static uint32_t look(struct store *store)
{
	struct limbo *limbo = &store->limbo;
	uint32_t n = limbo->n_fenced;
	uint32_t n_freed;

	limbo->is_looking = true;
	if (limbo->has_unnoted) {
		limbo->has_unnoted = false;
		n_freed = limbo_collect_all(store);
	} else {
		n_freed = settle_fenced(
			store, n < FENCED_PER_ROUND ? n : FENCED_PER_ROUND);
	}
	limbo->is_looking = false;
	return n_freed;
}

static void on_look(void *data, uint32_t index)
{
	struct store *store = data;
	struct limbo *limbo = &store->limbo;
	uint32_t ms = limbo->fence_ms * 2;

	(void)index;
	if (look(store))
		ms = FIRST_FENCE_MS;
	limbo->fence_ms = ms < LAST_FENCE_MS ? ms : LAST_FENCE_MS;
	if (limbo->n_fenced == 0 && !limbo->has_unnoted)
		return;
	note_slowness(store);
	plan_look(store);
}

static void plan_look(struct store *store)
{
	struct limbo *limbo = &store->limbo;
	struct deadline deadline = {
		.at_ms = now_ms() + limbo->fence_ms,
		.fn = on_look,
		.data = store,
		.position = &limbo->fence_position,
	};

	/* If memory runs out, the next slot that waits tries again. */
	if (!limbo->fence_position && !store->base->loop.is_stopping)
		(void)deadlines_add(&store->base->deadlines, &deadline, NULL);
}

/* Make space for one more; false: out of memory. */
static bool reserve_fenced(struct limbo *limbo)
{
	uint32_t max = limbo->max_fenced ? limbo->max_fenced * 2 : 64;
	uint32_t *fenced = NULL;

	if (limbo->n_fenced < limbo->max_fenced)
		return true;
	if (point_fail("limbo.malloc") == 0)
		fenced = reallocarray(limbo->fenced, max, sizeof(*fenced));
	if (!fenced)
		return false;
	limbo->fenced = fenced;
	limbo->max_fenced = max;
	return true;
}

void limbo_watch(struct store *store, uint32_t slot)
{
	struct slot_record *record = catalog_slot(&store->catalog, slot);
	struct limbo *limbo = &store->limbo;

	if (record->is_fenced)
		return;
	if (limbo->n_fenced == 0)
		limbo->fenced_ms = now_ms();
	if (reserve_fenced(limbo)) {
		limbo->fenced[limbo->n_fenced++] = slot;
		record->is_fenced = 1;
	} else {
		limbo->has_unnoted = true;
	}
	if (limbo->is_looking)
		return;
	/* Most work is short, even if some other work takes long. */
	limbo->fence_ms = FIRST_FENCE_MS;
	deadlines_remove(&store->base->deadlines, &limbo->fence_position);
	plan_look(store);
}

void limbo_deinit(struct limbo *limbo)
{
	free(limbo->fenced);
	limbo->fenced = NULL;
	limbo->n_fenced = limbo->max_fenced = 0;
}

/* --- collecting ---------------------------------------------------------- */

uint32_t limbo_collect_released(struct store *store)
{
	uint32_t n_sessions =
		catalog_n_touched(&store->catalog, SECTION_SESSION);
	uint64_t before = store->limbo.n_collected;
	uint32_t left = PENDING_PER_CALL;
	struct holdings *holdings;
	uint32_t n;

	for (uint32_t i = 1; i <= n_sessions; i++) {
		holdings = store->holdings[i];
		n = PENDING_PER_ROUND;
		while (holdings && n == PENDING_PER_ROUND && left >= n) {
			n = settle_pending(store, holdings);
			left -= n;
		}
	}
	(void)look(store);
	return (uint32_t)(store->limbo.n_collected - before);
}

uint32_t limbo_collect_all(struct store *store)
{
	struct catalog *catalog = &store->catalog;
	uint32_t n_freed = 0;
	uint32_t slot, next;

	for (slot = catalog->header->limbo.first; slot; slot = next) {
		next = catalog_slot(catalog, slot)->limbo_link.next;
		if (slot_settle(store, slot))
			n_freed++;
		catalog_commit(catalog);
	}
	store->limbo.n_collected += n_freed;
	return n_freed;
}

static void on_later(void *data, uint32_t index)
{
	(void)index;
	(void)limbo_collect_all(data);
}

void limbo_collect_later(struct store *store)
{
	struct deadline deadline = {
		.at_ms = 0,
		.fn = on_later,
		.data = store,
		.position = &store->limbo.later_position,
	};

	/* If memory runs out, the next collection finds the slots. */
	if (!store->limbo.later_position)
		(void)deadlines_add(&store->base->deadlines, &deadline, NULL);
}

void limbo_note_size(struct store *store)
{
	struct limbo *limbo = &store->limbo;

	if (store->catalog.header->limbo.n <= LIMBO_WARN ||
	    (limbo->n_warnings &&
	     now_ms() - limbo->warned_ms < LIMBO_WARN_EVERY_MS))
		return;
	limbo->warned_ms = now_ms();
	limbo->n_warnings++;
	log_line(LOG_LEVEL_WARNING,
		 "more than %d tensors are in limbo: replaced or removed, but "
		 "still held; `fsdpctl limbo` says by whom",
		 LIMBO_WARN);
}
