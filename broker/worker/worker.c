/*
 * Messages become jobs in the thread pool, and the ends of jobs become
 * messages.
 *
 * The link's thread checks a job, takes references to everything that it uses,
 * and queues it; the thread that ends the last task reports the job and
 * releases the references. A job that cannot be done is answered at once.
 *
 * The link's thread also works. It looks for messages before each task, and
 * while it has no task, for as long as the others look for tasks.
 */
#include "broker/worker/worker.h"
#include "broker/worker/device_comms.h"
#include "broker/worker/link.h"
#include "broker/worker/now.h"
#include "broker/worker/store.h"
#include "broker/worker/threads.h"
#include "collective/host/gather.h"
#include "collective/host/reduce.h"
#include "proto/error.h"
#include <assert.h>
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_CHUNKS (PLAN_MAX_RANKS + 2)

struct worker {
	int sock_fd; /* borrowed */
	struct store store;
	struct device_comms comms;
	struct threads *threads;
	const struct kernels *kernels;
	uint64_t busy_ns; /* when the link's thread ran its last task */
};

struct work {
	struct thread_job job;
	int sock_fd;
	uint64_t number, n_bytes;
	/* references */
	struct store_plan *plan;
	struct store_chunk *chunks[MAX_CHUNKS];
	uint32_t n_chunks;
	union {
		struct gather gather;
		struct reduce reduce;
	};
};

/* --- the end of a job ---------------------------------------------------- */

static void report(int sock_fd, uint64_t number, const struct error *err,
		   const struct work *work)
{
	struct job_done done = {.kind = JOB_DONE, .number = number};

	if (err) {
		done.code = err->code;
		memcpy(done.sentence, err->msg, sizeof(done.sentence) - 1);
	} else {
		done.n_bytes = work->n_bytes;
		done.ns = work->job.end_ns - work->job.start_ns;
	}
	/* A peer that closed the link does not need it, and the link's thread
	 * will see that the link is closed. */
	link_send_done(sock_fd, &done);
}

static void work_deinit(struct work *work)
{
	for (uint32_t i = 0; i < work->n_chunks; i++)
		store_unref_chunk(work->chunks[i]);
	store_unref_plan(work->plan);
}

static void on_done(struct thread_job *job, bool is_cut_off)
{
	struct work *work = (struct work *)job;

	/* This comes before the broker learns that the job is done: what it
	 * then forgets is unmapped at once. */
	work_deinit(work);
	if (!is_cut_off)
		report(work->sock_fd, work->number, NULL, work);
}

/* --- ranges -------------------------------------------------------------- */

/* Gives where `size` bytes of the range are mapped; with size 0 there is no
 * range. */
static int take_range(struct worker *worker, struct work *work,
		      const struct job_range *range, uint64_t size,
		      const char *what, uint8_t **ret, struct error *err)
{
	struct store_chunk *chunk;
	int r;

	*ret = NULL;
	if (size == 0)
		return 0;
	r = store_ref_range(&worker->store, range, size, what, &chunk, err);
	if (r < 0)
		return r;
	assert(work->n_chunks < MAX_CHUNKS);
	work->chunks[work->n_chunks++] = chunk;
	if (!chunk->base)
		return error_set(err, -EINVAL, "the %s are on a device", what);
	*ret = chunk->base + range->offset;
	return 0;
}

static bool is_overlap(const uint8_t *a, uint64_t a_size, const uint8_t *b,
		       uint64_t b_size)
{
	return a && b && a < b + b_size && b < a + a_size;
}

/* --- gathers ------------------------------------------------------------- */

static void run_gather(struct thread_job *job, uint64_t task)
{
	const struct work *work = (struct work *)job;

	/* A job without work has one empty task, so that it keeps its place. */
	if (gather_count_tasks(&work->gather) > 0)
		gather_run(&work->gather, task);
}

static int prepare_gather(struct worker *worker, const struct job *job,
			  struct work *work, struct error *err)
{
	const struct layout *layout = work->plan->layout;
	const struct plan *plan = &layout->plan;
	uint64_t shards_size = plan->shards_size * plan->n_replicas;
	uint64_t full_size = plan->full_size * plan->n_replicas;
	uint8_t *shards, *full;
	int r = take_range(worker, work, &job->shards, shards_size, "shards",
			   &shards, err);

	if (r >= 0)
		r = take_range(worker, work, &job->full, full_size,
			       "parameters", &full, err);
	if (r < 0)
		return r;
	if (is_overlap(shards, shards_size, full, full_size) &&
	    !(shards == full && layout_is_in_place(layout)))
		return error_set(err, -EINVAL,
				 "the parameters overlap the shards");
	work->gather = (struct gather){
		.layout = layout,
		.kernels = worker->kernels,
		.shards = shards,
		.full = full,
		.task_size = GATHER_TASK_SIZE,
	};
	work->n_bytes = gather_count_bytes(&work->gather);
	work->job.n_tasks = gather_count_tasks(&work->gather);
	work->job.run = run_gather;
	return 0;
}

/* --- reductions ---------------------------------------------------------- */

static void run_reduce(struct thread_job *job, uint64_t task)
{
	const struct work *work = (struct work *)job;

	if (reduce_count_tasks(&work->reduce) > 0)
		reduce_run(&work->reduce, task);
}

static int take_inputs(struct worker *worker, const struct job *job,
		       struct work *work, struct error *err)
{
	const struct plan *plan = &work->plan->layout->plan;
	int r = 0;

	for (uint32_t i = 0; i < plan->n_shards * plan->n_replicas && r >= 0;
	     i++) {
		uint8_t *input;

		r = take_range(worker, work, &job->inputs[i], plan->input_size,
			       "input gradients", &input, err);
		work->reduce.inputs[i] = input;
		if (r < 0)
			error_wrap(err, r, "rank %u", i);
	}
	return r;
}

static int check_overlaps(const struct work *work, uint64_t grads_size,
			  uint64_t partial_size, struct error *err)
{
	const struct reduce *reduce = &work->reduce;
	const struct plan *plan = &reduce->layout->plan;

	if (is_overlap(reduce->grads, grads_size, reduce->partial,
		       partial_size))
		return error_set(err, -EINVAL,
				 "the partial sums overlap the gradients");
	for (uint32_t i = 0; i < plan->n_shards * plan->n_replicas; i++) {
		const uint8_t *input = reduce->inputs[i];

		if (is_overlap(input, plan->input_size, reduce->grads,
			       grads_size) ||
		    is_overlap(input, plan->input_size, reduce->partial,
			       partial_size))
			return error_set(err, -EINVAL,
					 "the gradients overlap the input of "
					 "rank %u",
					 i);
	}
	return 0;
}

_Static_assert((int)JOB_ACCUMULATE == (int)HOST_REDUCE_ACCUMULATE &&
		       (int)JOB_PARTIAL_IN == (int)HOST_REDUCE_PARTIAL_IN &&
		       (int)JOB_PARTIAL_OUT == (int)HOST_REDUCE_PARTIAL_OUT,
	       "the flags are handed on as they are");

static int prepare_reduce(struct worker *worker, const struct job *job,
			  struct work *work, struct error *err)
{
	const struct layout *layout = work->plan->layout;
	const struct plan *plan = &layout->plan;
	uint64_t grads_size = plan->grads_size * plan->n_replicas;
	uint64_t partial_size = plan->partial_size * plan->n_replicas;
	const struct reduce_options options = {
		.flags = job->flags,
		.has_factor = job->has_factor,
		.is_sum_forced = job->is_sum_forced,
		.factor = job->factor,
	};
	int r = reduce_init(&work->reduce, layout, worker->kernels, &options,
			    err);

	if (job->flags & JOB_PARTIAL_OUT)
		grads_size = 0;
	if (!(job->flags & (JOB_PARTIAL_IN | JOB_PARTIAL_OUT)))
		partial_size = 0;
	if (r >= 0)
		r = take_range(worker, work, &job->grads, grads_size,
			       "gradients", &work->reduce.grads, err);
	if (r >= 0)
		r = take_range(worker, work, &job->partial, partial_size,
			       "partial sums", &work->reduce.partial, err);
	if (r >= 0)
		r = take_inputs(worker, job, work, err);
	if (r >= 0)
		r = check_overlaps(work, grads_size, partial_size, err);
	if (r < 0)
		return r;
	work->n_bytes = reduce_count_bytes(&work->reduce);
	work->job.n_tasks = reduce_count_tasks(&work->reduce);
	work->job.run = run_reduce;
	return 0;
}

/* --- messages ------------------------------------------------------------ */

static int queue(struct worker *worker, const struct job *job,
		 struct error *err)
{
	struct work *work = calloc(1, sizeof(*work));
	int r;

	if (!work)
		return error_nomem(err, "the job");
	work->job.stream = job->stream;
	work->job.done = on_done;
	work->sock_fd = worker->sock_fd;
	work->number = job->number;
	r = store_ref_plan(&worker->store, job->plan, &work->plan, err);
	if (r >= 0 && work->plan->layout->plan.policy.is_per_rank)
		r = error_set(err, -EINVAL, "the plan is for devices");
	if (r >= 0)
		r = job->kind == JOB_GATHER
			    ? prepare_gather(worker, job, work, err)
			    : prepare_reduce(worker, job, work, err);
	if (r < 0) {
		work_deinit(work);
		free(work);
		return r;
	}
	if (work->job.n_tasks == 0)
		work->job.n_tasks = 1;
	threads_queue(worker->threads, &work->job, true);
	return 0;
}

static void log_error(const struct error *err)
{
	fprintf(stderr, "fsdp-worker: %s\n", err->msg);
}

/* A job that cannot be done is refused at once. */
static void handle_job(struct worker *worker, const union link_message *message)
{
	struct error err = ERROR_NULL;
	uint64_t number;
	int r;

	switch (message->kind) {
	case JOB_COMM:
		number = message->comm.number;
		r = device_comms_open(&worker->comms, &message->comm, &err);
		break;
	case JOB_COMPARE:
		number = message->compare.number;
		r = device_comms_compare(&worker->comms, &message->compare,
					 &err);
		break;
	case JOB_DEVICE_GATHER:
	case JOB_DEVICE_REDUCE:
		number = message->device.number;
		r = device_comms_run(&worker->comms, &message->device, &err);
		break;
	default:
		number = message->job.number;
		r = queue(worker, &message->job, &err);
	}
	if (r < 0)
		report(worker->sock_fd, number, &err, NULL);
}

static void handle(struct worker *worker, const union link_message *message,
		   int fd)
{
	struct store *store = &worker->store;
	struct error err = ERROR_NULL;
	int r = 0;

	switch (message->kind) {
	case JOB_CHUNK:
		r = store_add_chunk(store, &message->chunk, fd, &err);
		break;
	case JOB_FORGET_CHUNK:
		r = store_forget_chunk(store, message->chunk.chunk, &err);
		break;
	case JOB_PLAN:
		r = store_add_plan(store, &message->plan, fd, &err);
		break;
	case JOB_FORGET_PLAN:
		r = store_forget_plan(store, message->plan.plan, &err);
		device_comms_drop_plans(&worker->comms);
		break;
	case JOB_TIMELINES:
		r = device_comms_take_timelines(&worker->comms,
						&message->timelines, fd, &err);
		break;
	case JOB_FORGET_COMM:
		device_comms_forget(&worker->comms, message->forget_comm.comm);
		break;
	default:
		handle_job(worker, message);
		return;
	}
	if (r < 0)
		log_error(&err);
}

static int say_hello(const struct worker *worker, uint32_t n_threads,
		     struct error *err)
{
	struct job_hello hello = {
		.kind = JOB_HELLO,
		.protocol = JOB_PROTOCOL,
		.n_threads = n_threads,
		.version = FSDP_VERSION,
	};

	snprintf(hello.cpu, sizeof(hello.cpu), "%s", worker->kernels->name);
	return link_send_hello(worker->sock_fd, &hello, err);
}

/* Do what link_receive() does, and run tasks meanwhile. */
static int await_message(struct worker *worker, union link_message *ret,
			 int *ret_fd, struct error *err)
{
	for (;;) {
		int r = link_receive(worker->sock_fd, false, ret, ret_fd, err);

		if (r != LINK_EMPTY)
			return r;
		if (threads_help(worker->threads))
			worker->busy_ns = now_ns();
		else if (now_ns() < worker->busy_ns + THREADS_LOOK_NS)
			sched_yield();
		else
			return link_receive(worker->sock_fd, true, ret, ret_fd,
					    err);
	}
}

int worker_run(int sock_fd, uint32_t n_threads, struct error *err)
{
	struct worker worker = {
		.sock_fd = sock_fd,
		.kernels = kernels_best(),
		.comms = {.sock_fd = sock_fd, .store = &worker.store},
	};
	int r = threads_new(n_threads - 1, &worker.threads, err);

	if (r < 0)
		return r;
	r = say_hello(&worker, n_threads, err);
	while (r == LINK_OK) {
		union link_message message;
		int fd;

		r = await_message(&worker, &message, &fd, err);
		if (r != LINK_OK)
			break;
		handle(&worker, &message, fd);
		if (fd >= 0)
			close(fd);
	}
	threads_free(worker.threads);
	device_comms_deinit(&worker.comms);
	store_deinit(&worker.store);
	return r == LINK_CLOSED ? 0 : r;
}
