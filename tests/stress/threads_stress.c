/*
 * Tests the two promises of the worker's thread pool: jobs of one stream run
 * one after another, and a job is done when its last task is. Every stream has
 * plain words, one for each task. Job k of a stream finds k in each and leaves
 * k + 1; its end checks them all. If two jobs of a stream overlap, or a job
 * ends too early, a number is wrong, and ThreadSanitizer sees a race.
 */
#include "broker/worker/threads.h"
#include "proto/error.h"
#include "tests/stress/stress.h"

#define N_THREADS 4
#define N_STREAMS 3
#define N_JOBS    1000 /* of each stream */
#define N_TASKS   7

struct job {
	struct thread_job base;
	uint64_t number;
};

static struct threads *threads;
static uint64_t words[N_STREAMS][N_TASKS]; /* plain on purpose */
static uint64_t n_done[N_STREAMS];
static uint32_t n_ended;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t has_ended = PTHREAD_COND_INITIALIZER;

static void run(struct thread_job *base, uint64_t task)
{
	struct job *job = (struct job *)base;
	uint64_t *word = &words[base->stream][task];

	check(*word == job->number, "a task ran beside another of its stream");
	*word = job->number + 1;
}

static void done(struct thread_job *base, bool is_cut_off)
{
	struct job *job = (struct job *)base;

	check(!is_cut_off, "a job was cut off");
	for (uint32_t task = 0; task < base->n_tasks; task++)
		check(words[base->stream][task] == job->number + 1,
		      "a job ended before its last task");
	if (++n_done[base->stream] < N_JOBS)
		return;
	pthread_mutex_lock(&lock);
	n_ended++;
	pthread_cond_signal(&has_ended);
	pthread_mutex_unlock(&lock);
}

static void *queue_stream(void *data)
{
	uint32_t stream = *(const uint32_t *)data;

	for (uint64_t i = 0; i < N_JOBS; i++) {
		struct job *job = calloc(1, sizeof(*job));

		check(job != NULL, "no memory");
		job->base.stream = stream;
		job->base.n_tasks = N_TASKS;
		job->base.run = run;
		job->base.done = done;
		job->number = i;
		threads_queue(threads, &job->base, false);
	}
	return NULL;
}

int main(void)
{
	uint32_t streams[N_STREAMS];
	pthread_t queuers[N_STREAMS];
	struct error err = ERROR_NULL;

	check(threads_new(N_THREADS, &threads, &err) == 0, err.msg);
	for (uint32_t i = 0; i < N_STREAMS; i++) {
		streams[i] = i;
		check(pthread_create(&queuers[i], NULL, queue_stream,
				     &streams[i]) == 0,
		      "start a thread");
	}
	for (uint32_t i = 0; i < N_STREAMS; i++)
		pthread_join(queuers[i], NULL);
	pthread_mutex_lock(&lock);
	while (n_ended < N_STREAMS)
		pthread_cond_wait(&has_ended, &lock);
	pthread_mutex_unlock(&lock);
	threads_free(threads);
	printf("threads_stress: %d streams of %d jobs kept their order\n",
	       N_STREAMS, N_JOBS);
	return 0;
}
