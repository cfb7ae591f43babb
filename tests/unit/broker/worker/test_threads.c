/* Tests the worker's thread pool: jobs are in order within a stream, and
 * independent between streams. */
#include "broker/worker/threads.h"
#include "tests/lib/check.h"

#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_ENDS 64

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int ends[MAX_ENDS], n_ends, n_cut_off;
static sem_t is_ended, may_go;
static atomic_int n_runs;

struct numbered {
	struct thread_job job;
	int number;
};

static void run(struct thread_job *job, uint64_t task)
{
	(void)job;
	(void)task;
	atomic_fetch_add(&n_runs, 1);
}

static void wait_to_go(struct thread_job *job, uint64_t task)
{
	run(job, task);
	sem_wait(&may_go);
}

static void let_go(struct thread_job *job, uint64_t task)
{
	run(job, task);
	sem_post(&may_go);
}

/* The first of two tasks waits for the second. */
static void meet(struct thread_job *job, uint64_t task)
{
	run(job, task);
	if (task == 0)
		sem_wait(&may_go);
	else
		sem_post(&may_go);
}

static void done(struct thread_job *job, bool is_cut_off)
{
	pthread_mutex_lock(&lock);
	ends[n_ends++] = ((struct numbered *)job)->number;
	n_cut_off += is_cut_off;
	pthread_mutex_unlock(&lock);
	sem_post(&is_ended);
}

static void queue_as(struct threads *threads, int number, uint32_t stream,
		     uint64_t n_tasks, thread_run_fn *fn, bool is_helped)
{
	struct numbered *numbered = calloc(1, sizeof(*numbered));

	numbered->number = number;
	numbered->job.stream = stream;
	numbered->job.n_tasks = n_tasks;
	numbered->job.run = fn;
	numbered->job.done = done;
	threads_queue(threads, &numbered->job, is_helped);
}

static void queue(struct threads *threads, int number, uint32_t stream,
		  uint64_t n_tasks, thread_run_fn *fn)
{
	queue_as(threads, number, stream, n_tasks, fn, false);
}

static struct threads *start(uint32_t n)
{
	struct threads *threads = NULL;

	sem_init(&is_ended, 0, 0);
	sem_init(&may_go, 0, 0);
	cr_assert(zero(int, threads_new(n, &threads, NULL)));
	return threads;
}

Test(threads, jobs_of_one_stream_end_in_order, .timeout = 300)
{
	struct threads *threads = start(4);

	for (int i = 0; i < 20; i++)
		queue(threads, i, 7, 1 + (uint64_t)i % 9, run);
	for (int i = 0; i < 20; i++)
		sem_wait(&is_ended);
	threads_free(threads);
	for (int i = 0; i < 20; i++)
		cr_assert(eq(int, ends[i], i));
	cr_assert(eq(int, n_cut_off, 0));
	cr_assert(eq(int, atomic_load(&n_runs), 93));
}

/* A task of the first stream waits for one of the second. The test ends only if
 * both end. */
Test(threads, a_stream_does_not_wait_for_another_stream, .timeout = 300)
{
	struct threads *threads = start(2);

	queue(threads, 1, 1, 1, wait_to_go);
	queue(threads, 2, 1, 1, run);
	queue(threads, 3, 2, 1, let_go);
	for (int i = 0; i < 3; i++)
		sem_wait(&is_ended);
	threads_free(threads);
	cr_assert(eq(int, n_ends, 3));
}

Test(threads, a_large_job_does_not_delay_a_small_job, .timeout = 300)
{
	struct threads *threads = start(1);

	queue(threads, 1, 1, 1, wait_to_go);
	queue(threads, 2, 2, 100, run);
	queue(threads, 3, 3, 1, run);
	sem_post(&may_go);
	for (int i = 0; i < 3; i++)
		sem_wait(&is_ended);
	threads_free(threads);
	cr_assert(eq(int, ends[1], 3));
}

/* The caller itself runs each task, and is told when there are no more. */
Test(threads, a_helping_caller_runs_all_tasks_if_there_is_no_thread,
     .timeout = 300)
{
	struct threads *threads = start(0);
	int n = 0;

	cr_assert(not(threads_help(threads)));
	queue(threads, 1, 1, 3, run);
	queue(threads, 2, 1, 2, run);
	queue(threads, 3, 2, 1, run);
	while (threads_help(threads))
		n++;
	cr_assert(eq(int, n, 6));
	cr_assert(eq(int, n_ends, 3));
	cr_assert(eq(int, atomic_load(&n_runs), 6));
	threads_free(threads);
	cr_assert(eq(int, n_cut_off, 0));
}

/* Two tasks wait for each other. The caller has one, so a thread must have been
 * woken for the other, whether it slept or not. */
Test(threads, a_job_with_a_helping_caller_is_given_a_thread_as_well,
     .timeout = 300)
{
	struct threads *threads = start(1);

	for (int i = 0; i < 50; i++) {
		queue_as(threads, i, 1, 2, meet, true);
		while (sem_trywait(&is_ended) != 0)
			(void)threads_help(threads);
		if (i % 10 == 9)
			usleep(1000); /* some threads are asleep then */
	}
	threads_free(threads);
	cr_assert(eq(int, n_cut_off, 0));
}

/* The threads may run on all CPUs on which the process may, even if some were
 * moved meanwhile. */
Test(threads, threads_keep_their_cpu_affinity, .timeout = 300)
{
	struct threads *threads = start(3);
	cpu_set_t before, after;
	DIR *dir = opendir("/proc/self/task");

	cr_assert(zero(int, sched_getaffinity(0, sizeof(before), &before)));
	for (int i = 0; i < MAX_ENDS; i++) {
		queue_as(threads, i, 1, 1000, run, true);
		while (sem_trywait(&is_ended) != 0)
			(void)threads_help(threads);
	}
	for (struct dirent *entry; (entry = readdir(dir));) {
		pid_t thread = atoi(entry->d_name);

		if (thread == 0)
			continue;
		cr_assert(zero(
			int, sched_getaffinity(thread, sizeof(after), &after)));
		cr_assert(zero(int, memcmp(&before, &after, sizeof(after))));
	}
	closedir(dir);
	threads_free(threads);
}

Test(threads, jobs_that_have_not_ended_when_threads_are_freed_are_cut_off,
     .timeout = 300)
{
	struct threads *threads = start(1);

	/* These are more tasks than are released before the end is
	 * requested. */
	queue(threads, 1, 1, 1 << 30, let_go);
	queue(threads, 2, 1, 1, run);
	sem_wait(&may_go);
	threads_free(threads);
	cr_assert(eq(int, n_ends, 2));
	cr_assert(eq(int, n_cut_off, 2));
	cr_assert(lt(int, atomic_load(&n_runs), 1 << 30));
}
