/*
 * The process: its lock, and its end. At exit, streams are told to stop and the
 * process waits for their threads, but only for a limited time: a kernel or
 * host function may never return, and a driver does not wait for those either.
 * The library cannot be unloaded, so a thread that remains does no harm.
 */
#include "tests/fakes/cuda/process.h"
#include "tests/fakes/cuda/leak.h"
#include "tests/fakes/cuda/settings.h"
#include "tests/fakes/cuda/stream.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define EXIT_SECONDS 2

struct process process;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t progress = PTHREAD_COND_INITIALIZER;
static pid_t owner; /* 0 before cuInit() */

void process_lock(void)
{
	pthread_mutex_lock(&lock);
}

void process_unlock(void)
{
	pthread_mutex_unlock(&lock);
}

void process_wait(void)
{
	pthread_cond_wait(&progress, &lock);
}

void process_wait_on(pthread_cond_t *condition)
{
	pthread_cond_wait(condition, &lock);
}

void process_wake(void)
{
	pthread_cond_broadcast(&progress);
}

bool process_is_forked(void)
{
	return owner != 0 && owner != getpid();
}

static struct timespec from_now(time_t seconds)
{
	struct timespec at;

	clock_gettime(CLOCK_REALTIME, &at);
	at.tv_sec += seconds;
	return at;
}

static void end(void)
{
	struct timespec at = from_now(EXIT_SECONDS);

	if (owner != getpid() || pthread_mutex_timedlock(&lock, &at) != 0)
		return;
	leak_report();
	process.is_stopping = true;
	stream_stop_all();
	process_wake();
	while (process.n_threads > 0 &&
	       pthread_cond_timedwait(&progress, &lock, &at) == 0)
		;
	if (process.n_threads > 0)
		fprintf(stderr, "fakecuda: %u streams have not ended\n",
			process.n_threads);
	stream_reap();
	process_unlock();
}

void process_begin(void)
{
	owner = getpid();
	/* A driver registers its handler here, too. So it runs before older
	 * handlers, such as the search for leaks, which must not see threads
	 * that are ending. */
	if (atexit(end) != 0)
		settings_refuse("no memory for the end");
	process.is_initialised = true;
}
