/*
 * The thread looks at the verdict of the run, which is one load, ten times a
 * second. The broker cannot wake it, because no rank on devices has a board.
 */
#include "client/rank/engine_watch.h"
#include "client/rank/engine_impl.h"
#include "cuda/bounded.h"
#include <time.h>

#define LOOK_NS   100000000
#define SECOND_NS 1000000000

/* --- the thread ---------------------------------------------------------- */

static void sleep_for_a_while(struct engine_watch *watch)
{
	struct timespec until;

	(void)clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_nsec += LOOK_NS;
	if (until.tv_nsec >= SECOND_NS) {
		until.tv_nsec -= SECOND_NS;
		until.tv_sec++;
	}
	(void)pthread_cond_timedwait(&watch->changed, &watch->lock, &until);
}

/* Returns false if the thread was stopped first. */
static bool await_end_of_run(struct rank_engine *engine)
{
	struct engine_watch *watch = &engine->watch;
	bool is_stopped;

	pthread_mutex_lock(&watch->lock);
	while (!watch->is_stopped && comm_is_alive(engine->comm))
		sleep_for_a_while(watch);
	is_stopped = watch->is_stopped;
	pthread_mutex_unlock(&watch->lock);
	return !is_stopped;
}

static void run(void *data)
{
	struct rank_engine *engine = data;

	if (!await_end_of_run(engine))
		return;
	/* The rank may be in a call that waits for the other ranks to connect,
	 * and has the lock. */
	atomic_store(&engine->watch.is_over, true);
	pthread_mutex_lock(&engine->nccl_lock);
	engine_abort_once(engine);
	pthread_mutex_unlock(&engine->nccl_lock);
}

/* --- beginning and end --------------------------------------------------- */

void engine_watch_init(struct engine_watch *watch)
{
	pthread_condattr_t attributes;

	pthread_mutex_init(&watch->lock, NULL);
	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&watch->changed, &attributes);
	pthread_condattr_destroy(&attributes);
}

/* In a forked child there is no thread, but the condition counts it as waiting,
 * so destroying it would wait for ever. */
void engine_watch_deinit(struct engine_watch *watch)
{
	if (watch->thread)
		return;
	pthread_cond_destroy(&watch->changed);
	pthread_mutex_destroy(&watch->lock);
}

int engine_watch_start(struct rank_engine *engine, struct error *err)
{
	if (!engine->comm->verdict)
		return 0;
	return bounded_start(run, engine, &engine->watch.thread, err);
}

void engine_watch_stop(struct rank_engine *engine)
{
	struct engine_watch *watch = &engine->watch;

	if (!watch->thread)
		return;
	pthread_mutex_lock(&watch->lock);
	watch->is_stopped = true;
	pthread_cond_signal(&watch->changed);
	pthread_mutex_unlock(&watch->lock);
	(void)bounded_await(watch->thread, UINT64_MAX);
	watch->thread = NULL;
}
