/*
 * The local engine: the list of jobs, the worker's messages, and the worker's
 * lifetime.
 *
 * The first jobs of the list were sent to the worker, the others are unsent.
 */
#include "broker/engine/engine_impl.h"
#include "broker/tensor/slot.h"
#include "broker/tensor/slot_state.h"
#include "broker/tensor/store.h"
#include "proto/failpoint.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* A worker that dies within this time without having done a job counts as a
 * quick death. */
#define QUICK_MS         10000
#define MAX_QUICK_DEATHS 5
#define BACK_OFF_MS      10000
/* The length and number of silent periods that a worker with jobs may have.
 * Because periods are counted, a suspend of the machine counts as one period
 * only. */
#define WATCH_MS       60000
#define MAX_SILENT     5
#define DONE_PER_ROUND 64
#define STOP_MS        1000

union message {
	uint32_t kind;
	struct job_hello hello;
	struct job_done done;
};

static void on_pidfd(uv_poll_t *poll, int status, int events);

void engine_init(struct engine *engine)
{
	engine->next_number = engine->next_plan = 1;
	engine->oom_fd = open("/proc/self/oom_score_adj", O_RDWR | O_CLOEXEC);
}

/* --- jobs ---------------------------------------------------------------- */

int engine_check_room(const struct engine *engine, struct error *err)
{
	if (engine->n_jobs < ENGINE_MAX_JOBS &&
	    failpoint_fail("engine.room") == 0)
		return 0;
	return error_set(err, -EBUSY,
			 "%" PRIu32
			 " gathers and reductions wait for fsdp-worker "
			 "already, which is the limit; try again later",
			 engine->n_jobs);
}

/* Make a job, which the caller then fills in. That cannot fail. */
static int job_new(struct engine *engine, size_t size, engine_done_fn *done,
		   void *data, struct engine_job **ret, struct error *err)
{
	struct engine_job *job;
	int r;

	r = engine_want(engine, err);
	if (r < 0)
		return r;
	job = calloc(1, sizeof(*job));
	if (!job)
		return error_nomem(err, "a job");
	job->number = engine->next_number++;
	job->size = size;
	job->done = done;
	job->data = data;
	*ret = job;
	return 0;
}

/* Set the range of the slot, which is pinned until the job is done. */
static struct job_range take_slot(struct engine *engine, struct engine_job *job,
				  uint32_t slot)
{
	const struct catalog *catalog = &engine->store->catalog;
	const struct slot_record *record;
	const struct block_record *block;

	if (!slot)
		return (struct job_range){0};
	slot_pin(engine->store, slot);
	job->slots[job->n_slots++] = slot;
	record = catalog_slot(catalog, slot);
	block = catalog_block(catalog, record->block);
	return (struct job_range){
		.chunk = catalog_chunk(catalog, block->chunk)->id,
		.offset = block->offset + record->offset,
		.size = record->size,
	};
}

/* Returns the id by which the worker knows the plan. */
static uint64_t take_plan(struct engine_job *job, struct engine_plan *plan)
{
	job->plan = plan;
	plan->n_jobs++;
	return plan->message.plan;
}

static void take_comm(struct engine *engine, struct engine_job *job,
		      uint64_t comm)
{
	job->comm = engine_find_comm(engine, comm);
	job->comm->n_jobs++;
}

static void append(struct engine *engine, struct engine_job *job)
{
	if (engine->last)
		engine->last->next = job;
	else
		engine->first = job;
	engine->last = job;
	if (!engine->unsent)
		engine->unsent = job;
	engine->n_jobs++;
	engine_pump(engine);
}

int engine_submit(struct engine *engine, const struct job *job,
		  struct engine_plan *plan, const struct engine_slots *slots,
		  engine_done_fn *done, void *data, struct error *err)
{
	struct engine_job *added;
	struct job *message;
	int r = job_new(engine, sizeof(*job), done, data, &added, err);

	if (r < 0)
		return r;
	message = &added->message.host;
	*message = *job;
	message->number = added->number;
	message->shards = take_slot(engine, added, slots->shards);
	message->full = take_slot(engine, added, slots->full);
	message->grads = take_slot(engine, added, slots->grads);
	message->partial = take_slot(engine, added, slots->partial);
	for (uint32_t i = 0; i < PLAN_MAX_RANKS; i++)
		message->inputs[i] = take_slot(engine, added, slots->inputs[i]);
	message->plan = take_plan(added, plan);
	append(engine, added);
	return 0;
}

static void fill_rank(struct engine *engine, struct engine_job *job,
		      const struct engine_rank_slots *slots, uint32_t i)
{
	struct job_rank *rank = &job->message.device.ranks[i];

	if (job->message.kind == JOB_DEVICE_GATHER) {
		rank->gather.shards = take_slot(engine, job, slots->shards[i]);
		rank->gather.full = take_slot(engine, job, slots->full[i]);
		return;
	}
	rank->reduce.input = take_slot(engine, job, slots->inputs[i]);
	rank->reduce.grads = take_slot(engine, job, slots->grads[i]);
	rank->reduce.partial = take_slot(engine, job, slots->partial[i]);
	rank->reduce.timeline = slots->fences[i].timeline;
	rank->reduce.value = slots->fences[i].value;
}

int engine_submit_device(struct engine *engine, const struct job_device *job,
			 struct engine_plan *plan,
			 const struct engine_rank_slots *slots,
			 engine_done_fn *done, void *data, struct error *err)
{
	struct engine_job *added;
	int r = job_new(engine, sizeof(*job), done, data, &added, err);

	if (r < 0)
		return r;
	added->message.device = *job;
	added->message.device.number = added->number;
	for (uint32_t i = 0; i < slots->n_ranks; i++)
		fill_rank(engine, added, slots, i);
	added->message.device.plan = take_plan(added, plan);
	take_comm(engine, added, job->comm);
	append(engine, added);
	return 0;
}

int engine_open_comm(struct engine *engine, const struct job_comm *comm,
		     engine_done_fn *done, void *data, struct error *err)
{
	struct engine_comm *opened = calloc(1, sizeof(*opened));
	struct engine_job *added;
	int r;

	if (!opened)
		return error_nomem(err, "a communicator");
	r = job_new(engine, sizeof(*comm), done, data, &added, err);
	if (r < 0) {
		free(opened);
		return r;
	}
	opened->id = comm->comm;
	opened->timeout_ms = comm->timeout_ms;
	opened->next = engine->comms;
	engine->comms = opened;
	added->message.comm = *comm;
	added->message.comm.number = added->number;
	take_comm(engine, added, comm->comm);
	append(engine, added);
	return 0;
}

int engine_compare(struct engine *engine, const struct job_compare *compare,
		   engine_done_fn *done, void *data, struct error *err)
{
	struct engine_job *added;
	int r = job_new(engine, sizeof(*compare), done, data, &added, err);

	if (r < 0)
		return r;
	added->message.compare = *compare;
	added->message.compare.number = added->number;
	take_comm(engine, added, compare->comm);
	append(engine, added);
	return 0;
}

static void count_done(struct engine *engine, const struct engine_job *job,
		       const struct job_done *done)
{
	if (done->code < 0) {
		engine->n_failed++;
		return;
	}
	switch (job->message.kind) {
	case JOB_GATHER:
	case JOB_DEVICE_GATHER:
		engine->n_gathers++;
		engine->bytes_gathered += done->n_bytes;
		break;
	case JOB_REDUCE:
	case JOB_DEVICE_REDUCE:
		engine->n_reductions++;
		engine->bytes_reduced += done->n_bytes;
		break;
	default:
		break;
	}
}

static void release_job(struct engine *engine, struct engine_job *job)
{
	for (uint32_t i = 0; i < job->n_slots; i++)
		(void)slot_unpin(engine->store, job->slots[i]);
	catalog_commit(&engine->store->catalog);
	if (job->plan) {
		job->plan->n_jobs--;
		engine_drop_plan(engine, job->plan);
	}
	if (job->comm) {
		job->comm->n_jobs--;
		engine_drop_comm(engine, job->comm);
	}
}

/* Call back for a job that was removed from the list, then release its
 * resources. */
static void finish_job(struct engine *engine, struct engine_job *job,
		       const struct job_done *done)
{
	count_done(engine, job, done);
	if (engine->n_jobs-- == ENGINE_MAX_JOBS)
		engine->hooks.on_room(engine->hooks.data);
	job->done(job->data, done);
	release_job(engine, job);
	free(job);
}

static void fail_jobs(struct engine *engine, struct engine_job *jobs,
		      const struct error *cause)
{
	struct engine_job *job;
	struct job_done done = {.kind = JOB_DONE, .code = cause->code};

	snprintf(done.sentence, sizeof(done.sentence), "%.*s", JOB_MAX_TEXT - 1,
		 cause->msg);
	while ((job = jobs)) {
		jobs = job->next;
		done.number = job->number;
		finish_job(engine, job, &done);
	}
}

/* Remove the jobs that were sent to the worker from the list. Returns them. */
static struct engine_job *take_sent(struct engine *engine)
{
	struct engine_job *sent = engine->first, **end = &sent;

	while (*end != engine->unsent)
		end = &(*end)->next;
	*end = NULL;
	engine->first = engine->unsent;
	if (!engine->first)
		engine->last = NULL;
	return sent;
}

static struct engine_job *take_all(struct engine *engine)
{
	struct engine_job *all = engine->first;

	engine->first = engine->last = engine->unsent = NULL;
	return all;
}

/* Remove the sent job of that number from the list. Returns NULL if the worker
 * has no such job. */
static struct engine_job *take_job(struct engine *engine, uint64_t number)
{
	struct engine_job **at = &engine->first, *previous = NULL, *job;

	while (*at != engine->unsent && (*at)->number != number) {
		previous = *at;
		at = &previous->next;
	}
	if (*at == engine->unsent)
		return NULL;
	job = *at;
	*at = job->next;
	if (engine->last == job)
		engine->last = previous;
	return job;
}

/* Fail the job for which descriptors or memory were short. Others may do
 * without what it needs. */
static void fail_unsent(struct engine *engine)
{
	struct engine_job *job = engine->unsent;
	struct error cause = ERROR_NULL;

	error_errno(&cause, engine->shortage,
		    "cannot send fsdp-worker the work");
	engine->shortage = 0;
	engine->unsent = job->next;
	job = take_job(engine, job->number);
	job->next = NULL;
	fail_jobs(engine, job, &cause);
}

/* --- messages of the worker ---------------------------------------------- */

static void take_hello(struct engine *engine, struct job_hello *hello)
{
	struct engine_worker *worker = engine->worker;

	hello->version[sizeof(hello->version) - 1] = '\0';
	hello->cpu[sizeof(hello->cpu) - 1] = '\0';
	if (engine->is_ready) {
		worker_lose(worker, "it sent a second hello");
		return;
	}
	if (hello->protocol != JOB_PROTOCOL ||
	    strcmp(hello->version, FSDP_VERSION) != 0) {
		worker_lose(worker,
			    "it has version %s (protocol %" PRIu32
			    "), but this broker has %s (%d); install both from "
			    "one build",
			    hello->version, hello->protocol, FSDP_VERSION,
			    JOB_PROTOCOL);
		return;
	}
	engine->is_ready = true;
	memcpy(engine->cpu, hello->cpu, sizeof(engine->cpu));
	log_line(LOG_LEVEL_INFO, "fsdp-worker (pid %d) has %u threads (%s)",
		 (int)worker->pid, hello->n_threads, hello->cpu);
	engine_pump(engine);
}

static void take_done(struct engine *engine, struct job_done *done)
{
	struct engine_job *job = NULL;

	if (done->code <= 0)
		job = take_job(engine, done->number);
	if (!job) {
		worker_lose(engine->worker,
			    "it reported job %" PRIu64 ", which it was not "
			    "given",
			    done->number);
		return;
	}
	done->sentence[sizeof(done->sentence) - 1] = '\0';
	engine->is_proven = true;
	finish_job(engine, job, done);
}

/* Receive one message. Returns false if no message is there, or if the worker
 * is no longer trusted. After a hang-up the broker reads the remaining
 * messages, since the jobs that they report are done. */
static bool receive(struct engine *engine)
{
	struct engine_worker *worker = engine->worker;
	union message message;
	ssize_t n;

	do
		n = recv(worker->link_fd, &message, sizeof(message),
			 MSG_DONTWAIT | MSG_TRUNC);
	/* The kernel reports a reset once; the remaining messages follow. */
	while (n < 0 && (errno == EINTR || errno == ECONNRESET));
	if (n < 0 && errno == EAGAIN)
		return false;
	engine->n_silent = 0;
	if (n <= 0) {
		worker_lose(worker, NULL);
		return false;
	}
	if (n == sizeof(message.hello) && message.kind == JOB_HELLO)
		take_hello(engine, &message.hello);
	else if (n == sizeof(message.done) && message.kind == JOB_DONE)
		take_done(engine, &message.done);
	else
		worker_lose(worker, "it sent an invalid message");
	return worker->cause.code == 0;
}

void engine_on_link(uv_poll_t *poll, int status, int events)
{
	struct engine_worker *worker = poll->data;
	struct engine *engine = worker->engine;
	int n = 0;

	(void)status;
	/* A hang-up may be reported as either event. */
	(void)events;
	meter_begin(&engine->store->base->loop.meter);
	do
		n++;
	/* Without jobs the worker has nothing more to report. */
	while (receive(engine) && n < DONE_PER_ROUND &&
	       engine->first != engine->unsent);
	if (engine->shortage && engine->unsent && !worker->is_lost)
		fail_unsent(engine);
	engine_pump(engine);
	(void)meter_end(&engine->store->base->loop.meter, METER_COLLECTIVES);
}

/* --- lifetime ------------------------------------------------------------ */

/* Returns the number of silent periods that the worker may have. The worker may
 * itself wait for ranks of other nodes, and reports when they are late. */
static uint32_t patience(const struct engine *engine)
{
	const struct engine_job *job = engine->first;
	uint32_t longest_ms = 0;

	for (; job != engine->unsent; job = job->next) {
		if (job->comm && job->comm->timeout_ms > longest_ms)
			longest_ms = job->comm->timeout_ms;
	}
	return MAX_SILENT + longest_ms / WATCH_MS;
}

static void on_watch(void *data, uint32_t index)
{
	struct engine *engine = data;

	(void)index;
	if (engine->is_ready && engine->first == engine->unsent)
		return;
	if (++engine->n_silent >= patience(engine))
		worker_lose(engine->worker,
			    "it sent nothing for %" PRIu32 " minutes, though "
			    "it has work",
			    (engine->n_silent - 1) * (WATCH_MS / 60000));
	else
		engine_watch_silence(engine);
}

void engine_watch_silence(struct engine *engine)
{
	struct deadline deadline = {
		.at_ms = now_ms() + WATCH_MS,
		.fn = on_watch,
		.data = engine,
		.position = &engine->watch_position,
	};

	if (engine->watch_position)
		return;
	/* If memory runs out, it is tried again for the next job. */
	(void)deadlines_add(&engine->store->base->deadlines, &deadline, NULL);
}

static int check_deaths(const struct engine *engine, struct error *err)
{
	uint64_t again_ms = engine->died_ms + BACK_OFF_MS;
	uint64_t now = now_ms();

	if (engine->n_quick_deaths < MAX_QUICK_DEATHS || now >= again_ms)
		return 0;
	return error_set(err, -EAGAIN,
			 "fsdp-worker has died %" PRIu32
			 " times in a row just after its start, and is started "
			 "again in %" PRIu64 " s; the last cause: %s",
			 engine->n_quick_deaths, (again_ms - now + 999) / 1000,
			 engine->death.msg);
}

int engine_want(struct engine *engine, struct error *err)
{
	int r;

	if (engine->is_stopping)
		return error_set(err, -ESHUTDOWN, "the broker is stopping");
	if (engine->worker)
		return 0;
	r = check_deaths(engine, err);
	if (r == 0)
		r = worker_start(engine, engine_on_link, on_pidfd,
				 &engine->worker, err);
	if (r < 0)
		return r;
	engine->pid = engine->worker->pid;
	engine->started_ms = now_ms();
	engine->is_proven = false;
	engine->n_silent = 0;
	engine->n_starts++;
	log_line(LOG_LEVEL_INFO, "fsdp-worker (pid %d) was started",
		 engine->pid);
	engine_watch_silence(engine);
	failpoint("engine.started");
	return 0;
}

static void forget_comms(struct engine *engine)
{
	struct engine_comm *comm, *next;

	for (comm = engine->comms; comm; comm = next) {
		next = comm->next;
		comm->is_lost |= comm->is_sent;
		comm->is_sent = false;
		engine_drop_comm(engine, comm);
	}
}

/* Free a worker that has exited. The next one must be sent everything again. */
static void forget_worker(struct engine *engine)
{
	struct engine_plan *plan;

	worker_free(engine->worker);
	engine->worker = NULL;
	engine->pid = 0;
	engine->is_ready = false;
	engine->has_stale = engine->has_stale_chunks = false;
	engine->shortage = 0;
	deadlines_remove(&engine->store->base->deadlines,
			 &engine->watch_position);
	deadlines_remove(&engine->store->base->deadlines,
			 &engine->retry_position);
	memset(engine->sent_chunks, 0, sizeof(engine->sent_chunks));
	for (plan = engine->plans; plan; plan = plan->next)
		plan->is_sent = false;
	while (engine->stale_plans)
		engine_free_plan(engine->stale_plans);
	forget_comms(engine);
}

static void note_death(struct engine *engine)
{
	engine->died_ms = now_ms();
	if (!engine->is_proven &&
	    engine->died_ms - engine->started_ms < QUICK_MS)
		engine->n_quick_deaths++;
	else
		engine->n_quick_deaths = 0;
	log_line(LOG_LEVEL_ERROR, "%s", engine->death.msg);
}

/* Start a new worker if there are jobs that were not sent yet. */
static void start_again(struct engine *engine)
{
	struct error err = ERROR_NULL;

	if (!engine->first || engine_want(engine, &err) == 0)
		return;
	log_line(LOG_LEVEL_ERROR, "%s", err.msg);
	fail_jobs(engine, take_all(engine), &err);
}

/* The process of the worker has exited, so nothing writes any more. It reported
 * the jobs that it completed before. */
static void on_pidfd(uv_poll_t *poll, int status, int events)
{
	struct engine_worker *worker = poll->data;
	struct engine *engine = worker->engine;
	struct engine_job *jobs;

	(void)status;
	(void)events;
	while (worker->cause.code == 0 && receive(engine))
		;
	worker_collect(worker, &engine->death);
	note_death(engine);
	forget_worker(engine);
	jobs = take_sent(engine);
	fail_jobs(engine, jobs, &engine->death);
	engine->hooks.on_death(engine->hooks.data, &engine->death);
	start_again(engine);
}

void engine_stop(struct engine *engine)
{
	struct error cause = ERROR_NULL;

	engine->is_stopping = true;
	if (engine->worker) {
		worker_stop(engine->worker, STOP_MS);
		forget_worker(engine);
	}
	error_set(&cause, -ECANCELED, "the broker is stopping");
	fail_jobs(engine, take_all(engine), &cause);
	while (engine->plans)
		engine_free_plan(engine->plans);
	if (engine->oom_fd >= 0)
		close(engine->oom_fd);
	engine->oom_fd = -1;
}
