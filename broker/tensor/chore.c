/*
 * Chores: a round-robin queue.
 */
#include "broker/tensor/chore.h"
#include "broker/base/deadline.h"
#include "broker/tensor/store.h"
#include <sys/resource.h>

#define ROUND_NS 500000
/* With this pause the broker uses less than its share of a CPU even among
 * many processes, and gets the CPU at once when a request comes (fsdp-bench
 * hostile bundle_get). */
#define PAUSE_MS 15

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

/* Has another process taken the CPU from us since the last call? */
static bool was_preempted(struct chores *chores)
{
	long before = chores->n_preemptions;
	struct rusage usage;

	if (getrusage(RUSAGE_THREAD, &usage) < 0)
		return false;
	chores->n_preemptions = usage.ru_nivcsw;
	return usage.ru_nivcsw != before;
}

void chore_begin(struct store *store, struct chore *chore)
{
	/* Forget preemptions from before the first chore. */
	if (!store->chores.first)
		(void)was_preempted(&store->chores);
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

static void on_resume(void *data, uint32_t index)
{
	struct store *store = data;

	(void)index;
	loop_defer(&store->base->loop, &store->chores.rounds);
}

/* If memory runs out, there is no pause. */
static void pause_chores(struct store *store)
{
	struct deadline deadline = {
		.at_ms = now_ms() + PAUSE_MS,
		.fn = on_resume,
		.data = store,
		.position = &store->chores.resume_position,
	};

	(void)deadlines_add(&store->base->deadlines, &deadline, NULL);
}

bool chores_on_idle(struct store *store)
{
	struct chores *chores = &store->chores;
	uint64_t end = uv_hrtime() + ROUND_NS;
	struct chore *chore;

	if (chores->resume_position)
		return false;
	while ((chore = chores->first) && uv_hrtime() < end) {
		unlink_chore(chores, chore);
		append(chores, chore);
		if (!chore->step(chore->data, chore->index))
			chore_end(store, chore);
	}
	if (chores->first && was_preempted(chores))
		pause_chores(store);
	return chores->first && !chores->resume_position;
}
