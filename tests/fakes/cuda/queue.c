/* Queues, in which each piece of work has a place. */
#include "tests/fakes/cuda/queue.h"
#include "tests/fakes/cuda/call.h"
#include "tests/fakes/cuda/process.h"
#include "tests/fakes/cuda/settings.h"
#include "tests/fakes/cuda/stream.h"
#include <stdlib.h>

static unsigned int n_queues; /* 0 if each stream has its own */

void queue_open(void)
{
	const char *text = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
	unsigned long wanted = text ? strtoul(text, NULL, 10) : 0;

	n_queues = (unsigned int)settings()->n_queues;
	if (n_queues > 0 && wanted >= 1 && wanted <= QUEUES_MAX)
		n_queues = (unsigned int)wanted;
	for (unsigned int i = 0; i < n_queues; i++)
		call_note(NOTE_QUEUES);
}

struct queue *queue_choose(struct queue queues[QUEUES_MAX])
{
	static unsigned int n_chosen;

	return n_queues > 0 ? &queues[n_chosen++ % n_queues] : NULL;
}

void queue_give(struct queue *queue, struct work *work)
{
	if (queue)
		work->place = queue->n_given++;
}

void queue_await(struct queue *queue, const struct work *work)
{
	while (queue && queue->n_passed < work->place &&
	       !stream_is_useless(work->stream))
		process_wait();
}

void queue_pass(struct queue *queue, uint64_t place)
{
	if (!queue || queue->n_passed > place)
		return;
	queue->n_passed = place + 1;
	process_wake();
}
