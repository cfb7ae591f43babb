/*
 * Chores: a round-robin queue.
 */
#include "broker/tensor/chore.h"
#include "broker/tensor/store.h"

#define ROUND_NS 500000

static void append(struct chores *chores, struct chore *chore)
{
	chore->next = NULL;
	chore->prev = chores->last;
	if (chores->last)
		chores->last->next = chore;
	else
		chores->first = chore;
	chores->last = chore;
}

static void unlink_chore(struct chores *chores, struct chore *chore)
{
	if (chore->prev)
		chore->prev->next = chore->next;
	else
		chores->first = chore->next;
	if (chore->next)
		chore->next->prev = chore->prev;
	else
		chores->last = chore->prev;
}

void chore_begin(struct store *store, struct chore *chore)
{
	if (!chore->is_queued)
		append(&store->chores, chore);
	chore->is_queued = true;
	loop_defer(&store->base->loop, &store->chores.rounds);
}

void chore_end(struct store *store, struct chore *chore)
{
	if (chore->is_queued)
		unlink_chore(&store->chores, chore);
	chore->is_queued = false;
}

/* --- rounds -------------------------------------------------------------- */

bool chores_on_idle(struct store *store)
{
	struct chores *chores = &store->chores;
	uint64_t end = uv_hrtime() + ROUND_NS;
	struct chore *chore;

	while ((chore = chores->first) && uv_hrtime() < end) {
		unlink_chore(chores, chore);
		append(chores, chore);
		if (!chore->step(chore->data, chore->index))
			chore_end(store, chore);
	}
	return chores->first;
}
