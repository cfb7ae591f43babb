/*
 * One lock, one list of all jobs in the order of their coming.
 *
 * A task is some 0.5 MiB to be moved, tens of microseconds, so a lock for each
 * is not seen beside it, and it makes the choice of the next task a few lines
 * that can be fair. Threads are woken one by one, as many as there is work for
 * beside those that are awake.
 */
#include "broker/worker/threads.h"
#include "proto/error.h"
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

struct threads {
	pthread_mutex_t lock;
	pthread_cond_t has_work;
	struct thread_job *jobs; /* owned; the oldest first */
	/* Tasks that can be taken. Changed with the lock, looked at without. */
	_Atomic uint64_t n_ready;
	uint32_t n_looking, n_asleep; /* threads of the pool */
	uint64_t turn;                /* tasks taken so far */
	atomic_bool is_stopping;      /* likewise */
	uint32_t n;
	pthread_t threads[];
};

static uint64_t now_ns(void)
{
	struct timespec now;

	(void)clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* Has `a` a better claim to a thread than `b`? */
static bool is_before(const struct thread_job *a, const struct thread_job *b)
{
	uint64_t n_a = a->n_taken - a->n_ended, n_b = b->n_taken - b->n_ended;

	return n_a < n_b || (n_a == n_b && a->turn < b->turn);
}

static struct thread_job *pick(const struct threads *threads)
{
	struct thread_job *best = NULL;

	for (struct thread_job *job = threads->jobs; job; job = job->next) {
		if (job->is_first && job->n_taken < job->n_tasks &&
		    (!best || is_before(job, best)))
			best = job;
	}
	return best;
}

/* The job's tasks have become ready, and `n_here` of them are for the caller
 * and for threads that are awake. */
static void make_ready(struct threads *threads, struct thread_job *job,
		       uint64_t n_here)
{
	uint64_t n = job->n_tasks;

	job->is_first = true;
	/* relaxed: whoever looks takes the lock before it takes a task */
	atomic_fetch_add_explicit(&threads->n_ready, n, memory_order_relaxed);
	n -= n < n_here ? n : n_here;
	if (n > threads->n_asleep)
		n = threads->n_asleep;
	while (n-- > 0)
		pthread_cond_signal(&threads->has_work);
}

static struct thread_job *find_stream(const struct threads *threads,
				      uint32_t stream)
{
	struct thread_job *job = threads->jobs;

	while (job && job->stream != stream)
		job = job->next;
	return job;
}

static void finish(struct threads *threads, struct thread_job *job)
{
	struct thread_job **link = &threads->jobs, *next;

	pthread_mutex_unlock(&threads->lock);
	job->done(job, false);
	pthread_mutex_lock(&threads->lock);
	while (*link != job)
		link = &(*link)->next;
	*link = job->next;
	next = find_stream(threads, job->stream);
	if (next)
		make_ready(threads, next, threads->n_looking + 1);
	free(job);
}

static void run_task(struct threads *threads, struct thread_job *job)
{
	uint64_t task = job->n_taken++;

	job->turn = ++threads->turn;
	/* relaxed: as in make_ready() */
	atomic_fetch_sub_explicit(&threads->n_ready, 1, memory_order_relaxed);
	if (task == 0)
		job->start_ns = now_ns();
	pthread_mutex_unlock(&threads->lock);
	job->run(job, task);
	pthread_mutex_lock(&threads->lock);
	if (++job->n_ended < job->n_tasks)
		return;
	job->end_ns = now_ns();
	finish(threads, job);
}

bool threads_help(struct threads *threads)
{
	struct thread_job *job;

	pthread_mutex_lock(&threads->lock);
	job = pick(threads);
	if (job)
		run_task(threads, job);
	pthread_mutex_unlock(&threads->lock);
	return job;
}

/* Until there may be a task, or the time is over. Without the lock. */
static void look(const struct threads *threads, uint64_t until_ns)
{
	do
		sched_yield();
	/* relaxed: what is seen is looked at again with the lock */
	while (!atomic_load_explicit(&threads->n_ready, memory_order_relaxed) &&
	       !atomic_load_explicit(&threads->is_stopping,
				     memory_order_relaxed) &&
	       now_ns() < until_ns);
}

/* There is no task. `busy_ns`: when this thread had the last one. */
static void await_task(struct threads *threads, uint64_t busy_ns)
{
	uint64_t until_ns = busy_ns + THREADS_LOOK_NS;

	if (now_ns() >= until_ns) {
		threads->n_asleep++;
		pthread_cond_wait(&threads->has_work, &threads->lock);
		threads->n_asleep--;
		return;
	}
	threads->n_looking++;
	pthread_mutex_unlock(&threads->lock);
	look(threads, until_ns);
	pthread_mutex_lock(&threads->lock);
	threads->n_looking--;
}

static void *work(void *data)
{
	struct threads *threads = data;
	uint64_t busy_ns = 0;

	pthread_mutex_lock(&threads->lock);
	while (!threads->is_stopping) {
		struct thread_job *job = pick(threads);

		if (!job) {
			await_task(threads, busy_ns);
			continue;
		}
		run_task(threads, job);
		busy_ns = now_ns();
	}
	pthread_mutex_unlock(&threads->lock);
	return NULL;
}

static int start_thread(struct threads *threads)
{
	char name[16];
	int r = pthread_create(&threads->threads[threads->n], NULL, work,
			       threads);

	if (r != 0)
		return -r;
	snprintf(name, sizeof(name), "fsdp-task/%u", threads->n % 1000);
	(void)pthread_setname_np(threads->threads[threads->n], name);
	threads->n++;
	return 0;
}

int threads_new(uint32_t n, struct threads **ret, struct error *err)
{
	struct threads *threads =
		calloc(1, sizeof(*threads) + n * sizeof(pthread_t));

	if (!threads)
		return error_set(err, -ENOMEM, "no memory for %u threads", n);
	pthread_mutex_init(&threads->lock, NULL);
	pthread_cond_init(&threads->has_work, NULL);
	while (threads->n < n) {
		int r = start_thread(threads);

		if (r < 0) {
			error_errno(err, r, "start thread %u of %u",
				    threads->n + 1, n);
			threads_free(threads);
			return r;
		}
	}
	*ret = threads;
	return 0;
}

void threads_free(struct threads *threads)
{
	if (!threads)
		return;
	pthread_mutex_lock(&threads->lock);
	threads->is_stopping = true;
	pthread_cond_broadcast(&threads->has_work);
	pthread_mutex_unlock(&threads->lock);
	for (uint32_t i = 0; i < threads->n; i++)
		pthread_join(threads->threads[i], NULL);
	while (threads->jobs) {
		struct thread_job *job = threads->jobs;

		threads->jobs = job->next;
		job->done(job, true);
		free(job);
	}
	pthread_cond_destroy(&threads->has_work);
	pthread_mutex_destroy(&threads->lock);
	free(threads);
}

void threads_queue(struct threads *threads, struct thread_job *job,
		   bool is_helped)
{
	struct thread_job **link;
	bool is_first;

	assert(job->n_tasks > 0);
	job->next = NULL;
	job->n_taken = 0;
	job->n_ended = 0;
	job->turn = 0;
	job->is_first = false;
	pthread_mutex_lock(&threads->lock);
	is_first = !find_stream(threads, job->stream);
	link = &threads->jobs;
	while (*link)
		link = &(*link)->next;
	*link = job;
	if (is_first)
		make_ready(threads, job, threads->n_looking + is_helped);
	pthread_mutex_unlock(&threads->lock);
}
