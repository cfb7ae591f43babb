/*
 * One lock protects one list of all jobs, in the order in which they came.
 *
 * A task moves some 0.5 MiB, which takes tens of microseconds, so taking a lock
 * for each costs little, and the fair choice of the next task takes only a few
 * lines. Threads are woken one by one, as many as there is work for beside
 * those that are awake.
 */
#include "broker/worker/threads.h"
#include "broker/worker/now.h"
#include "proto/error.h"
#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

/* A thread; protected by the lock. */
struct seat {
	struct threads *threads;
	pthread_t thread;
	pthread_cond_t is_wanted;
	/* Neither: it was woken, or it looks for tasks. */
	bool is_asleep, is_busy;
};

struct threads {
	pthread_mutex_t lock;
	struct thread_job *jobs; /* owned; the oldest first */
	/* The number of tasks that can be taken. It is changed with the lock
	 * and read without it. */
	_Atomic uint64_t n_ready;
	uint32_t n_looking;      /* threads of the pool that look for tasks */
	uint64_t turn;           /* how many tasks were taken so far */
	atomic_bool is_stopping; /* is read without the lock, too */
	uint32_t n;              /* number of seats */
	/* one of the helper, and one for each thread */
	struct seat seats[];
};

/* Does `a` have a better claim to a thread than `b`? */
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

/* The job's tasks have become ready. `n_here` of them are for the caller and
 * for threads that are awake. */
static void make_ready(struct threads *threads, struct thread_job *job,
		       uint64_t n_here)
{
	uint64_t n = job->n_tasks;

	job->is_first = true;
	/* Relaxed: a thread that looks takes the lock before it takes a
	 * task. */
	atomic_fetch_add_explicit(&threads->n_ready, n, memory_order_relaxed);
	n -= n < n_here ? n : n_here;
	for (uint32_t i = 1; i < threads->n && n > 0; i++) {
		struct seat *seat = &threads->seats[i];

		if (!seat->is_asleep)
			continue;
		seat->is_asleep = false;
		pthread_cond_signal(&seat->is_wanted);
		n--;
	}
}

/*
 * A job's first task is done. A thread that is awake and has no task waits for
 * a CPU, most often for this one: it was woken while the other CPUs were not
 * idle yet, and the scheduler may leave it here for longer than a job takes. So
 * it may not run here for a moment, which moves it. Threads on other CPUs are
 * not affected.
 */
static void spread(struct threads *threads)
{
	int here = sched_getcpu();

	for (uint32_t i = 0; i < threads->n; i++) {
		const struct seat *seat = &threads->seats[i];
		cpu_set_t all, others;

		if (seat->is_asleep || seat->is_busy ||
		    pthread_getaffinity_np(seat->thread, sizeof(all), &all) !=
			    0)
			continue;
		others = all;
		CPU_CLR((size_t)here, &others);
		if (pthread_setaffinity_np(seat->thread, sizeof(others),
					   &others) == 0)
			(void)pthread_setaffinity_np(seat->thread, sizeof(all),
						     &all);
	}
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

static void run_task(struct seat *seat, struct thread_job *job)
{
	struct threads *threads = seat->threads;
	uint64_t task = job->n_taken++;

	job->turn = ++threads->turn;
	/* relaxed, as in make_ready() */
	atomic_fetch_sub_explicit(&threads->n_ready, 1, memory_order_relaxed);
	if (task == 0)
		job->start_ns = now_ns();
	seat->is_busy = true;
	pthread_mutex_unlock(&threads->lock);
	job->run(job, task);
	pthread_mutex_lock(&threads->lock);
	if (++job->n_ended == 1 && job->n_taken < job->n_tasks)
		spread(threads);
	seat->is_busy = false;
	if (job->n_ended < job->n_tasks)
		return;
	job->end_ns = now_ns();
	finish(threads, job);
}

bool threads_help(struct threads *threads)
{
	struct seat *seat = &threads->seats[0];
	struct thread_job *job;

	pthread_mutex_lock(&threads->lock);
	job = pick(threads);
	if (job) {
		seat->thread = pthread_self();
		seat->is_asleep = false;
		run_task(seat, job);
	}
	pthread_mutex_unlock(&threads->lock);
	return job;
}

/* Wait until there may be a task or the time is over. The caller does not have
 * the lock. */
static void look(const struct threads *threads, uint64_t until_ns)
{
	do
		sched_yield();
	/* relaxed: the lock is taken before it counts */
	while (!atomic_load_explicit(&threads->n_ready, memory_order_relaxed) &&
	       !atomic_load_explicit(&threads->is_stopping,
				     memory_order_relaxed) &&
	       now_ns() < until_ns);
}

/* There is no task. `busy_ns` is when this thread had its last one. */
static void await_task(struct seat *seat, uint64_t busy_ns)
{
	struct threads *threads = seat->threads;
	uint64_t until_ns = busy_ns + THREADS_LOOK_NS;

	if (now_ns() >= until_ns) {
		seat->is_asleep = true;
		while (seat->is_asleep && !threads->is_stopping)
			pthread_cond_wait(&seat->is_wanted, &threads->lock);
		return;
	}
	threads->n_looking++;
	pthread_mutex_unlock(&threads->lock);
	look(threads, until_ns);
	pthread_mutex_lock(&threads->lock);
	threads->n_looking--;
}

/* prctl() names the own thread. To name another thread one writes to a file,
 * which Landlock forbids. */
static void name_self(const struct seat *seat)
{
	unsigned at = (unsigned)(seat - seat->threads->seats) - 1;
	char name[16];

	snprintf(name, sizeof(name), "fsdp-task/%u", at % 1000);
	(void)pthread_setname_np(pthread_self(), name);
}

static void *work(void *data)
{
	struct seat *seat = data;
	struct threads *threads = seat->threads;
	uint64_t busy_ns = 0;

	name_self(seat);
	pthread_mutex_lock(&threads->lock);
	while (!threads->is_stopping) {
		struct thread_job *job = pick(threads);

		if (!job) {
			await_task(seat, busy_ns);
			continue;
		}
		run_task(seat, job);
		busy_ns = now_ns();
	}
	pthread_mutex_unlock(&threads->lock);
	return NULL;
}

static int start_thread(struct threads *threads)
{
	struct seat *seat = &threads->seats[threads->n];
	int r;

	*seat = (struct seat){.threads = threads};
	pthread_cond_init(&seat->is_wanted, NULL);
	r = pthread_create(&seat->thread, NULL, work, seat);
	if (r != 0) {
		pthread_cond_destroy(&seat->is_wanted);
		return -r;
	}
	threads->n++;
	return 0;
}

int threads_new(uint32_t n, struct threads **ret, struct error *err)
{
	struct threads *threads =
		calloc(1, sizeof(*threads) + (n + 1) * sizeof(struct seat));

	if (!threads)
		return error_nomem(err, "%u threads", n);
	pthread_mutex_init(&threads->lock, NULL);
	threads->seats[0] =
		(struct seat){.threads = threads, .is_asleep = true};
	threads->n = 1;
	while (threads->n <= n) {
		int r = start_thread(threads);

		if (r < 0) {
			error_errno(err, r, "cannot start thread %u of %u",
				    threads->n, n);
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
	for (uint32_t i = 1; i < threads->n; i++)
		pthread_cond_signal(&threads->seats[i].is_wanted);
	pthread_mutex_unlock(&threads->lock);
	for (uint32_t i = 1; i < threads->n; i++) {
		pthread_join(threads->seats[i].thread, NULL);
		pthread_cond_destroy(&threads->seats[i].is_wanted);
	}
	while (threads->jobs) {
		struct thread_job *job = threads->jobs;

		threads->jobs = job->next;
		job->done(job, true);
		free(job);
	}
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
