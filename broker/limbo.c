/*
 * The limbo collector and the eviction clock.
 *
 * Both only settle slots; what they add is which ones to look at. Settling is
 * in order by itself, so both commit after each; the journal then stays within
 * the CPU's cache.
 */
#include "broker/limbo.h"
#include "broker/broker.h"
#include "broker/slot.h"
#include "proto/point.h"
#include <stddef.h>

#define PENDING_PER_ROUND 256
/* Anybody can set a million bits in no time. */
#define PENDING_PER_CALL 65536
/* The hand passes an unused slot at most three times: used in the current era,
 * in the one before, and then not any more. */
#define EVICT_ROUNDS 4

/* Settle what bits say, a bounded number; gives how many bits. */
static uint32_t settle_pending(struct broker *broker, struct session *session)
{
	struct catalog *catalog = &broker->catalog;
	uint32_t n_slots = catalog_n_touched(catalog, SECTION_SLOT);
	uint32_t slots[PENDING_PER_ROUND];
	uint32_t n, i;

	if (!session->refs.bitmap)
		return 0;
	n = refs_take_pending(&session->refs, slots, PENDING_PER_ROUND);
	for (i = 0; i < n; i++) {
		/* the bits are the client's: any slot, in any state */
		if (slots[i] == 0 || slots[i] > n_slots)
			continue;
		if (slot_settle(broker, slots[i]))
			broker->limbo.n_collected++;
		catalog_commit(catalog);
	}
	return n;
}

bool limbo_collect_pending(struct broker *broker, struct session *session)
{
	broker->limbo.n_rings++;
	return settle_pending(broker, session) == PENDING_PER_ROUND;
}

uint32_t limbo_collect_released(struct broker *broker)
{
	uint64_t before = broker->limbo.n_collected;
	uint32_t left = PENDING_PER_CALL;
	struct session *session;
	uint32_t n;

	for (uint32_t i = 1; i <= CATALOG_MAX_SESSIONS; i++) {
		session = broker->sessions[i];
		n = PENDING_PER_ROUND;
		while (session && n == PENDING_PER_ROUND && left >= n) {
			n = settle_pending(broker, session);
			left -= n;
		}
	}
	return (uint32_t)(broker->limbo.n_collected - before);
}

uint32_t limbo_collect_all(struct broker *broker)
{
	struct catalog *catalog = &broker->catalog;
	uint32_t n_freed = 0;
	uint32_t slot, next;

	for (slot = catalog->header->limbo.first; slot; slot = next) {
		next = catalog_slot(catalog, slot)->limbo_link.next;
		if (slot_settle(broker, slot))
			n_freed++;
		catalog_commit(catalog);
	}
	broker->limbo.n_collected += n_freed;
	return n_freed;
}

static void on_later(void *data, uint32_t index)
{
	(void)index;
	(void)limbo_collect_all(data);
}

void limbo_collect_later(struct broker *broker)
{
	struct deadline deadline = {
		.at_ms = 0,
		.fn = on_later,
		.data = broker,
		.position = &broker->limbo.later_position,
	};

	/* Without memory for a deadline the next collection finds them. */
	if (!broker->limbo.later_position)
		(void)deadlines_add(&broker->deadlines, &deadline, NULL);
}

void limbo_note_size(struct broker *broker)
{
	uint32_t n = broker->catalog.header->limbo.n;

	if (n >= LIMBO_WARN && !broker->limbo.is_warned) {
		broker->limbo.is_warned = true;
		broker_log(LOG_LEVEL_WARNING,
			   "%u tensors are in limbo: replaced or removed, but "
			   "still held; `fsdpctl limbo` says by whom",
			   n);
	}
	/* Half of it, or a limbo that hovers there would fill the log. */
	if (n < LIMBO_WARN / 2)
		broker->limbo.is_warned = false;
}

/* --- eviction ----------------------------------------------------------------
 */

/* Did any session acquire it in this era or the one before? */
static bool is_recent(const struct broker *broker, uint32_t slot)
{
	const struct catalog *catalog = &broker->catalog;
	uint16_t era = (uint16_t)atomic_load_explicit(
		&broker->table.header->era, memory_order_relaxed);
	uint32_t grant = catalog_slot(catalog, slot)->grants.first;
	const struct grant_record *record;
	const struct session *session;

	for (; grant; grant = record->slot_link.next) {
		record = catalog_grant(catalog, grant);
		session = broker->sessions[record->session];
		if (!session || !session->refs.entries)
			continue;
		if ((uint16_t)(era - refs_used(&session->refs, slot)) <= 1)
			return true;
	}
	return false;
}

static bool is_candidate(const struct broker *broker, uint32_t slot,
			 const uint32_t *uid)
{
	const struct catalog *catalog = &broker->catalog;
	const struct slot_record *record = catalog_slot(catalog, slot);

	if (!record->block || record->bundle || record->n_tickets ||
	    record->group || record->n_pins ||
	    !(record->flags & SLOT_FLAG_NAMED) ||
	    !(record->flags & PUBLISH_EVICTABLE) || record->writer)
		return false;
	return !uid || catalog_block(catalog, record->block)->uid == *uid;
}

/* The next slot the hand points to; a full turn begins a new era. */
static uint32_t turn(struct broker *broker, uint32_t n_slots)
{
	struct limbo *limbo = &broker->limbo;

	if (limbo->hand >= n_slots) {
		limbo->hand = 0;
		/* relaxed: a hint that clients copy */
		atomic_fetch_add_explicit(&broker->table.header->era, 1,
					  memory_order_relaxed);
	}
	return ++limbo->hand;
}

/* Gives the bytes that letting go of it freed. */
static uint64_t evict_one(struct broker *broker, uint32_t slot)
{
	struct catalog *catalog = &broker->catalog;
	const struct block_record *block =
		catalog_block(catalog, catalog_slot(catalog, slot)->block);
	uint64_t size =
		block->slots.n == 1 ? slot_block_charge(block->size) : 0;

	/* looked at first, so that what is in use does not flicker */
	if (slot_is_held(broker, slot) || !slot_evict(broker, slot))
		return 0;
	broker->n_evicted++;
	point("limbo.evicted");
	return size;
}

uint64_t limbo_evict(struct broker *broker, uint64_t bytes, const uint32_t *uid)
{
	uint32_t n = catalog_n_touched(&broker->catalog, SECTION_SLOT);
	uint64_t left = (uint64_t)n * EVICT_ROUNDS;
	uint64_t freed = 0;
	uint32_t slot;

	while (left-- > 0 && freed < bytes && broker->limbo.n_evictable > 0) {
		slot = turn(broker, n);
		if (!is_candidate(broker, slot, uid) || is_recent(broker, slot))
			continue;
		freed += evict_one(broker, slot);
		catalog_commit(&broker->catalog);
	}
	return freed;
}
