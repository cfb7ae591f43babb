/*
 * The limbo list, and the slots in it that only devices use.
 */
#include "broker/tensor/limbo.h"
#include "broker/tensor/store.h"
#include "proto/failpoint.h"
#include <stddef.h>
#include <stdlib.h>

#define LIMBO_LINK offsetof(struct slot_record, limbo_link)

/* --- the list ------------------------------------------------------------ */

static void note_size(struct store *store)
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
		 "still held; `fsdpctl limbo` shows the holders",
		 LIMBO_WARN);
}

void limbo_enter(struct store *store, uint32_t slot)
{
	struct catalog *catalog = &store->catalog;
	struct slot_record *record = catalog_slot(catalog, slot);

	if (record->flags & SLOT_FLAG_IN_LIMBO)
		return;
	catalog_list_append(catalog, &catalog->header->limbo, SECTION_SLOT,
			    LIMBO_LINK, slot);
	catalog_set(catalog, record->flags,
		    (uint16_t)(record->flags | SLOT_FLAG_IN_LIMBO));
	note_size(store);
}

void limbo_leave(struct store *store, uint32_t slot)
{
	struct catalog *catalog = &store->catalog;
	struct slot_record *record = catalog_slot(catalog, slot);

	if (!(record->flags & SLOT_FLAG_IN_LIMBO))
		return;
	catalog_list_remove(catalog, &catalog->header->limbo, SECTION_SLOT,
			    LIMBO_LINK, slot);
	catalog_set(catalog, record->flags,
		    (uint16_t)(record->flags & ~SLOT_FLAG_IN_LIMBO));
}

/* --- devices ------------------------------------------------------------- */

void limbo_plan_visit(struct store *store)
{
	struct limbo *limbo = &store->limbo;
	struct deadline deadline = {
		.at_ms = now_ms() + limbo->fence_ms,
		.fn = limbo->on_fenced,
		.data = store,
		.position = &limbo->fence_position,
	};

	/* If memory runs out, the next such slot tries again. */
	if (!limbo->fence_position && !store->base->loop.is_stopping)
		(void)deadlines_add(&store->base->deadlines, &deadline, NULL);
}

/* Makes space for one more slot. Returns false if memory ran out. */
static bool reserve_fenced(struct limbo *limbo)
{
	uint32_t max = limbo->max_fenced ? limbo->max_fenced * 2 : 64;
	uint32_t *fenced = NULL;

	if (limbo->n_fenced < limbo->max_fenced)
		return true;
	if (failpoint_fail("limbo.malloc") == 0)
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
	/* Tensors that come faster than the shortest delay must not postpone a
	 * visit again and again. */
	if (limbo->is_looking ||
	    (limbo->fence_position && limbo->fence_ms == LIMBO_FIRST_FENCE_MS))
		return;
	/* The delay starts again from the shortest, since most work is short
	 * even if some other work takes long. */
	limbo->fence_ms = LIMBO_FIRST_FENCE_MS;
	deadlines_remove(&store->base->deadlines, &limbo->fence_position);
	limbo_plan_visit(store);
}

void limbo_deinit(struct limbo *limbo)
{
	free(limbo->fenced);
	limbo->fenced = NULL;
	limbo->n_fenced = limbo->max_fenced = 0;
}

void limbo_collect_later(struct store *store)
{
	struct deadline deadline = {
		.at_ms = 0,
		.fn = store->limbo.on_later,
		.data = store,
		.position = &store->limbo.later_position,
	};

	/* If memory runs out, the next collection finds the slots. */
	if (!store->limbo.later_position)
		(void)deadlines_add(&store->base->deadlines, &deadline, NULL);
}
