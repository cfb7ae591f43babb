/*
 * The thread pool. Jobs are cut into tasks.
 *
 * Jobs of one stream run one after the other, in the order in which they were
 * queued. Streams run side by side: a free thread takes the next task of the
 * job that has the fewest threads, and jobs with equally many take turns.
 *
 * A thread that runs out of tasks looks for more for a moment before it sleeps,
 * and yields to all others meanwhile. So no thread has to be woken where one
 * collective follows another. A thread that is awake and has no task because it
 * lacks a CPU is moved to another CPU.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct error;
struct thread_job;

/* Runs on any thread of the pool, side by side with other tasks of the job. */
typedef void thread_run_fn(struct thread_job *job, uint64_t task);
/*
 * Called once, by the thread that has finished the last task, before the
 * stream's next job begins; or, with `is_cut_off`, by threads_free(). Then the
 * pool calls free() for the job.
 */
typedef void thread_done_fn(struct thread_job *job, bool is_cut_off);

/* The first member of what the caller allocates for a job. */
struct thread_job {
	uint32_t stream;
	uint64_t n_tasks; /* at least 1 */
	thread_run_fn *run;
	thread_done_fn *done;
	/* of the first and the last task; valid in done() */
	uint64_t start_ns, end_ns;
	/* private state, protected by the pool's lock */
	struct thread_job *next;
	uint64_t n_taken, n_ended;
	uint64_t turn; /* when its last task was taken */
	bool is_first; /* it is the first of its stream */
};

struct threads; /* opaque */

/* How long a thread without tasks looks for more before it sleeps. */
#define THREADS_LOOK_NS 100000

/* `n` may be 0: then only callers that help run tasks. */
int threads_new(uint32_t n, struct threads **ret, struct error *err);

/* Cut off all jobs after the tasks that run, and end the threads. NULL is
 * fine. */
void threads_free(struct threads *threads);

/* Queue the job; this never blocks for long. `is_helped`: the caller will help,
 * so one thread less is woken. */
void threads_queue(struct threads *threads, struct thread_job *take_job,
		   bool is_helped);

/* Runs one task on the caller's thread. Returns false if no task is ready at
 * the moment. */
bool threads_help(struct threads *threads);
