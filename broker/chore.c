/*
 * Chores: the queue. The first one makes a step and goes to the end.
 */
#include "broker/chore.h"
#include "broker/broker.h"

#define ROUND_NS 1000000

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

void chore_begin(struct broker *broker, struct chore *chore)
{
	if (!chore->is_queued)
		append(&broker->chores, chore);
	chore->is_queued = true;
	broker_want_idle(broker);
}

void chore_end(struct broker *broker, struct chore *chore)
{
	if (chore->is_queued)
		unlink_chore(&broker->chores, chore);
	chore->is_queued = false;
}

void chores_on_idle(struct broker *broker)
{
	struct chores *chores = &broker->chores;
	uint64_t end = uv_hrtime() + ROUND_NS;
	struct chore *chore;

	while ((chore = chores->first) && uv_hrtime() < end) {
		unlink_chore(chores, chore);
		append(chores, chore);
		if (!chore->step(chore->data, chore->index))
			chore_end(broker, chore);
	}
}
