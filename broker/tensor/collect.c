/*
 * The collector selects the slots whose states are updated. Each update leaves
 * the catalog consistent, so it is committed by itself; the journal then stays
 * within the CPU's cache.
 */
#include "broker/tensor/collect.h"
#include "broker/tensor/limbo.h"
#include "broker/tensor/slot_state.h"
#include "broker/tensor/store.h"
#include <string.h>

#define PENDING_PER_ROUND 256
/* A limit is needed, since a client can set a million bits in no time. */
#define PENDING_PER_CALL 65536
/* The number of device slots visited per round, and the longest interval. */
#define FENCED_PER_ROUND 4096
#define LAST_FENCE_MS    50
/* A warning is logged if no slot was freed for this long. */
#define SLOW_FENCE_MS 30000

/* Visits a bounded number of pending bits. Returns the number of bits. */
static uint32_t update_pending(struct store *store, struct holdings *holdings)
{
	struct catalog *catalog = &store->catalog;
	uint32_t n_slots = catalog_n_touched(catalog, SECTION_SLOT);
	uint32_t slots[PENDING_PER_ROUND];
	uint32_t n, i;

	if (!holdings->refs.bitmap)
		return 0;
	n = refs_take_pending(&holdings->refs, slots, PENDING_PER_ROUND);
	for (i = 0; i < n; i++) {
		/* The client may set the bit of any slot, in any state. */
		if (slots[i] == 0 || slots[i] > n_slots)
			continue;
		if (slot_update_state(store, slots[i]))
			store->limbo.n_collected++;
		catalog_commit(catalog);
	}
	return n;
}

bool collect_pending(struct store *store, struct holdings *holdings)
{
	store->limbo.n_rings++;
	return update_pending(store, holdings) == PENDING_PER_ROUND;
}

/* --- devices ------------------------------------------------------------- */

static void note_slowness(struct store *store)
{
	struct limbo *limbo = &store->limbo;

	if (limbo->is_slow || now_ms() - limbo->fenced_ms < SLOW_FENCE_MS)
		return;
	limbo->is_slow = true;
	log_line(LOG_LEVEL_WARNING,
		 "work on devices has not finished for %d s, and %u tensor%s "
		 "that no process holds must wait for it; `fsdpctl limbo` "
		 "shows the tensors, which are freed at the latest when the "
		 "processes that started the work end",
		 SLOW_FENCE_MS / 1000, limbo->n_fenced,
		 limbo->n_fenced == 1 ? "" : "s");
}

/* Visits the first `n` slots again; those still in use go to the end. Returns
 * the number of slots freed. */
static uint32_t update_fenced(struct store *store, uint32_t n)
{
	struct catalog *catalog = &store->catalog;
	struct limbo *limbo = &store->limbo;
	uint32_t n_freed = 0;

	for (uint32_t i = 0; i < n; i++) {
		uint32_t slot = limbo->fenced[i];

		catalog_slot(catalog, slot)->is_fenced = 0;
		if (slot_update_state(store, slot))
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
		n_freed = collect_all(store);
	} else {
		n_freed = update_fenced(
			store, n < FENCED_PER_ROUND ? n : FENCED_PER_ROUND);
	}
	limbo->is_looking = false;
	return n_freed;
}

static void on_fenced(void *data, uint32_t index)
{
	struct store *store = data;
	struct limbo *limbo = &store->limbo;
	uint32_t ms = limbo->fence_ms * 2;

	(void)index;
	if (look(store))
		ms = LIMBO_FIRST_FENCE_MS;
	limbo->fence_ms = ms < LAST_FENCE_MS ? ms : LAST_FENCE_MS;
	if (limbo->n_fenced == 0 && !limbo->has_unnoted)
		return;
	note_slowness(store);
	limbo_plan_visit(store);
}

/* --- collecting ---------------------------------------------------------- */

uint32_t collect_released(struct store *store)
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
			n = update_pending(store, holdings);
			left -= n;
		}
	}
	(void)look(store);
	return (uint32_t)(store->limbo.n_collected - before);
}

uint32_t collect_all(struct store *store)
{
	struct catalog *catalog = &store->catalog;
	uint32_t n_freed = 0;
	uint32_t slot, next;

	for (slot = catalog->header->limbo.first; slot; slot = next) {
		next = catalog_slot(catalog, slot)->limbo_link.next;
		if (slot_update_state(store, slot))
			n_freed++;
		catalog_commit(catalog);
	}
	store->limbo.n_collected += n_freed;
	return n_freed;
}

static void on_later(void *data, uint32_t index)
{
	(void)index;
	(void)collect_all(data);
}

void collect_init(struct store *store)
{
	store->limbo.on_fenced = on_fenced;
	store->limbo.on_later = on_later;
}
