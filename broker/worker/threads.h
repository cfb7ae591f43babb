/*
 * The thread pool: jobs that are cut into tasks.
 *
 * Jobs of one stream run one after the other, in the order in which they were
 * queued; streams run side by side: a free thread takes the next task of the
 * job that has the fewest threads, of equal ones in turns.
 *
 * A thread that runs out of tasks looks for more for a moment before it sleeps,
 * and yields to all others meanwhile: where one collective follows another, no
 * thread has to be woken. A thread that is awake and gets no task because it
 * lacks a CPU is sent to another CPU.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct error;
struct thread_job;

/* On any thread of the pool, side by side with other tasks of the job. */
typedef void thread_run_fn(struct thread_job *job, uint64_t task);
/*
 * Called once, by the thread that has finished the last task and before the
 * stream's next job begins, or, with `is_cut_off`, by threads_free(). The job
 * is free()d afterwards.
 */
typedef void thread_done_fn(struct thread_job *job, bool is_cut_off);

/* The first member of what the caller allocates for a job. */
struct thread_job {
	uint32_t stream;
	uint64_t n_tasks; /* at least 1 */
	thread_run_fn *run;
	thread_done_fn *done;
	uint64_t start_ns, end_ns; /* of the first and the last task; in done */
	/* private state, under the pool's lock */
	struct thread_job *next;
	uint64_t n_taken, n_ended;
	uint64_t turn; /* when its last task was taken */
	bool is_first; /* of its stream */
};

struct threads; /* threads.c */

/* How long a thread without tasks looks for more before it sleeps. */
#define THREADS_LOOK_NS 100000

/* `n` may be 0: then only callers that help run tasks. */
int threads_new(uint32_t n, struct threads **ret, struct error *err);

/* Cut off all jobs behind the tasks that run, and end. NULL is fine. */
void threads_free(struct threads *threads);

/* Take the job; never blocks for long. `is_helped`: the caller goes on to help,
 * so that one thread less is woken. */
void threads_queue(struct threads *threads, struct thread_job *take_job,
		   bool is_helped);

/* Run one task on the caller's thread; false: there is none just now. */
bool threads_help(struct threads *threads);
