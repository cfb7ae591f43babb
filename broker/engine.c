/*
 * The local engine: jobs in order, plans, and the link to the worker.
 *
 * There is no queue of messages. What the worker must know is derived when
 * there is room on the link: first what it is to forget, then for the next job
 * the plan and the chunks that it has not been sent, then the job. If the link
 * is full, all that waits until it is not. So nothing is allocated to send, and
 * a worker that does not read costs the broker nothing but waiting jobs.
 *
 * Of the list of jobs a first part is with the worker, the rest is unsent.
 */
#include "broker/broker.h"
#include "broker/engine_impl.h"
#include "broker/slot.h"
#include "proto/point.h"
#include "shm/memfd.h"
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

/* Dies a worker so soon without having done a job, it may do so again. */
#define QUICK_MS         10000
#define MAX_QUICK_DEATHS 5
#define BACK_OFF_MS      10000
/* Who owes something may be silent so many times so long. In steps, so that
 * time during which the machine slept counts as one of them. */
#define WATCH_MS       60000
#define MAX_SILENT     5
#define DONE_PER_ROUND 64
#define STOP_MS        1000

struct engine_plan {
	struct job_plan message;
	struct plan_entry *entries; /* owned */
	bool is_sent, is_removed;
	uint32_t n_jobs; /* that name it */
	struct engine_plan *next;
};

struct engine_job {
	struct job job;
	struct engine_slots slots; /* pinned */
	struct engine_plan *plan;
	engine_done_fn *done;
	void *data;
	struct engine_job *next;
};

union message {
	uint32_t kind;
	struct job_hello hello;
	struct job_done done;
};

static void on_link(uv_poll_t *poll, int status, int events);
static void on_pidfd(uv_poll_t *poll, int status, int events);

int engine_init(struct engine *engine, struct broker *broker, struct error *err)
{
	(void)err;
	*engine = (struct engine){
		.broker = broker,
		.next_number = 1,
		.next_plan = 1,
	};
	return 0;
}

/* --- plans -----------------------------------------------------------------
 */

int engine_add_plan(struct engine *engine, const struct plan *plan,
		    uint64_t *ret_plan, struct error *err)
{
	size_t size = plan->n_entries * sizeof(plan->entries[0]);
	struct engine_plan *added = calloc(1, sizeof(*added));

	if (added)
		added->entries = malloc(size);
	if (!added || !added->entries) {
		free(added);
		return error_set(err, -ENOMEM, "no memory for a plan");
	}
	memcpy(added->entries, plan->entries, size);
	added->message = (struct job_plan){
		.kind = JOB_PLAN,
		.n_entries = plan->n_entries,
		.plan = engine->next_plan++,
		.n_shards = plan->n_shards,
		.n_replicas = plan->n_replicas,
		.shards_size = plan->shards_size,
		.full_size = plan->full_size,
		.input_size = plan->input_size,
		.grads_size = plan->grads_size,
		.partial_size = plan->partial_size,
	};
	added->next = engine->plans;
	engine->plans = added;
	*ret_plan = added->message.plan;
	return 0;
}

static struct engine_plan *find_plan(const struct engine *engine, uint64_t id)
{
	struct engine_plan *plan = engine->plans;

	while (plan && plan->message.plan != id)
		plan = plan->next;
	assert(plan); /* ids are ours */
	return plan;
}

static void free_plan(struct engine *engine, struct engine_plan *plan)
{
	struct engine_plan **at = &engine->plans;

	while (*at != plan)
		at = &(*at)->next;
	*at = plan->next;
	free(plan->entries);
	free(plan);
}

/* Nobody needs it; the worker may have to be told first. */
static void drop_plan(struct engine *engine, struct engine_plan *plan)
{
	if (!plan->is_removed || plan->n_jobs > 0)
		return;
	if (plan->is_sent)
		engine->has_stale = true;
	else
		free_plan(engine, plan);
}

/* --- the link --------------------------------------------------------------
 */

/* 0 or -errno; -EAGAIN: it is full. */
static int send_message(const struct engine_worker *worker, void *bytes,
			size_t size, int fd)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control = {0};
	struct iovec part = {bytes, size};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
	struct cmsghdr *c;
	ssize_t n;

	if (fd >= 0) {
		message.msg_control = &control;
		message.msg_controllen = sizeof(control);
		c = CMSG_FIRSTHDR(&message);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(c), &fd, sizeof(fd));
	}
	do
		n = sendmsg(worker->link_fd, &message,
			    MSG_DONTWAIT | MSG_NOSIGNAL);
	while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : 0;
}

static int forget_chunk(struct engine *engine, uint32_t index)
{
	struct job_chunk message = {
		.kind = JOB_FORGET_CHUNK,
		.chunk = engine->sent_chunks[index],
	};
	int r = send_message(engine->worker, &message, sizeof(message), -1);

	if (r == 0)
		engine->sent_chunks[index] = 0;
	return r;
}

static int forget_plan(struct engine *engine, struct engine_plan *plan)
{
	struct job_plan message = {
		.kind = JOB_FORGET_PLAN,
		.plan = plan->message.plan,
	};
	int r = send_message(engine->worker, &message, sizeof(message), -1);

	if (r == 0)
		free_plan(engine, plan);
	return r;
}

/* What the worker has and needs no more. */
static int send_stale(struct engine *engine)
{
	const struct catalog *catalog = &engine->broker->catalog;
	struct engine_plan *plan, *next;
	int r = 0;

	for (uint32_t i = 1; i < TABLE_CHUNKS && r == 0; i++) {
		if (engine->sent_chunks[i] &&
		    catalog_chunk(catalog, i)->id != engine->sent_chunks[i])
			r = forget_chunk(engine, i);
	}
	for (plan = engine->plans; plan && r == 0; plan = next) {
		next = plan->next;
		if (plan->is_sent && plan->is_removed && plan->n_jobs == 0)
			r = forget_plan(engine, plan);
	}
	if (r == 0)
		engine->has_stale = false;
	return r;
}

static int send_chunk(struct engine *engine, uint32_t slot)
{
	const struct catalog *catalog = &engine->broker->catalog;
	struct job_chunk message = {.kind = JOB_CHUNK};
	uint32_t index;
	int r = 0;

	if (!slot)
		return 0;
	index = catalog_block(catalog, catalog_slot(catalog, slot)->block)
			->chunk;
	message.chunk = catalog_chunk(catalog, index)->id;
	message.size = catalog_chunk(catalog, index)->size;
	if (engine->sent_chunks[index] == message.chunk)
		return 0;
	if (engine->sent_chunks[index])
		r = forget_chunk(engine, index);
	if (r == 0)
		r = send_message(engine->worker, &message, sizeof(message),
				 engine->broker->pools.chunks[index].fd);
	if (r == 0)
		engine->sent_chunks[index] = message.chunk;
	return r;
}

static int send_chunks(struct engine *engine, const struct engine_slots *slots)
{
	int r = send_chunk(engine, slots->shards);

	if (r == 0)
		r = send_chunk(engine, slots->full);
	if (r == 0)
		r = send_chunk(engine, slots->grads);
	if (r == 0)
		r = send_chunk(engine, slots->partial);
	for (uint32_t i = 0; i < PLAN_MAX_RANKS && r == 0; i++)
		r = send_chunk(engine, slots->inputs[i]);
	return r;
}

/* In a memfd that only the worker keeps: groups are many, descriptors few. */
static int store_entries(const struct engine_plan *plan, int *ret_fd)
{
	size_t size = plan->message.n_entries * sizeof(plan->entries[0]);
	int fd, r;

	r = memfd_create_sealed("fsdpd-plan", size, MEMFD_SEAL_SIZE, &fd, NULL);
	if (r < 0)
		return r;
	r = pwrite(fd, plan->entries, size, 0) == (ssize_t)size ? 0 : -EIO;
	if (r == 0)
		r = memfd_seal_write(fd, NULL);
	if (r < 0)
		close(fd);
	else
		*ret_fd = fd;
	return r;
}

static int send_plan(struct engine *engine, struct engine_plan *plan)
{
	int fd, r;

	if (plan->is_sent)
		return 0;
	r = store_entries(plan, &fd);
	if (r < 0)
		return r;
	r = send_message(engine->worker, &plan->message, sizeof(plan->message),
			 fd);
	close(fd);
	if (r == 0)
		plan->is_sent = true;
	return r;
}

static void watch_silence(struct engine *engine);

static int send_job(struct engine *engine, struct engine_job *job)
{
	int r = send_plan(engine, job->plan);

	if (r == 0)
		r = send_chunks(engine, &job->slots);
	if (r == 0)
		r = send_message(engine->worker, &job->job, sizeof(job->job),
				 -1);
	if (r < 0)
		return r;
	engine->unsent = job->next;
	watch_silence(engine);
	return 0;
}

/* Send what there is room for; the rest when there is more. */
static void pump(struct engine *engine)
{
	struct engine_worker *worker = engine->worker;
	int r = 0;

	if (!worker || worker->is_lost || !engine->is_ready)
		return;
	if (engine->has_stale)
		r = send_stale(engine);
	while (r == 0 && engine->unsent)
		r = send_job(engine, engine->unsent);
	if (r == -EPIPE || r == -ECONNRESET) {
		worker_lose(worker, NULL);
		return;
	}
	if (r < 0 && r != -EAGAIN) {
		worker_lose(worker, "nothing can be sent to it: %s",
			    strerror(-r));
		return;
	}
	if (worker->is_full == (r == -EAGAIN))
		return;
	worker->is_full = !worker->is_full;
	worker_watch_link(worker,
			  UV_READABLE | (worker->is_full ? UV_WRITABLE : 0),
			  on_link);
}

void engine_remove_plan(struct engine *engine, uint64_t plan)
{
	struct engine_plan *removed = find_plan(engine, plan);

	removed->is_removed = true;
	drop_plan(engine, removed);
	pump(engine);
}

void engine_forget_chunk(struct engine *engine, uint32_t chunk_index)
{
	if (!engine->sent_chunks[chunk_index])
		return;
	engine->has_stale = true;
	pump(engine);
}

/* --- jobs ------------------------------------------------------------------
 */

static struct job_range range_of(const struct broker *broker, uint32_t slot)
{
	const struct catalog *catalog = &broker->catalog;
	const struct slot_record *record;
	const struct block_record *block;

	if (!slot)
		return (struct job_range){0};
	record = catalog_slot(catalog, slot);
	block = catalog_block(catalog, record->block);
	return (struct job_range){
		.chunk = catalog_chunk(catalog, block->chunk)->id,
		.offset = block->offset + record->offset,
		.size = record->size,
	};
}

static void fill_ranges(const struct broker *broker, struct engine_job *job)
{
	const struct engine_slots *slots = &job->slots;

	job->job.shards = range_of(broker, slots->shards);
	job->job.full = range_of(broker, slots->full);
	job->job.grads = range_of(broker, slots->grads);
	job->job.partial = range_of(broker, slots->partial);
	for (uint32_t i = 0; i < PLAN_MAX_RANKS; i++)
		job->job.inputs[i] = range_of(broker, slots->inputs[i]);
}

static void pin(struct broker *broker, uint32_t slot)
{
	if (slot)
		slot_pin(broker, slot);
}

static void unpin(struct broker *broker, uint32_t slot)
{
	if (slot)
		(void)slot_unpin(broker, slot);
}

static void each_slot(struct broker *broker, const struct engine_slots *slots,
		      void (*fn)(struct broker *broker, uint32_t slot))
{
	fn(broker, slots->shards);
	fn(broker, slots->full);
	fn(broker, slots->grads);
	fn(broker, slots->partial);
	for (uint32_t i = 0; i < PLAN_MAX_RANKS; i++)
		fn(broker, slots->inputs[i]);
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
}

int engine_submit(struct engine *engine, const struct job *job,
		  const struct engine_slots *slots, engine_done_fn *done,
		  void *data, struct error *err)
{
	struct engine_job *added;
	int r;

	if (engine->n_jobs >= ENGINE_MAX_JOBS)
		return error_set(err, -EBUSY,
				 "%" PRIu32 " gathers and reductions wait for "
				 "fsdp-worker already",
				 engine->n_jobs);
	r = engine_want(engine, err);
	if (r < 0)
		return r;
	added = calloc(1, sizeof(*added));
	if (!added)
		return error_set(err, -ENOMEM, "no memory for a job");
	added->job = *job;
	added->job.number = engine->next_number++;
	added->slots = *slots;
	added->plan = find_plan(engine, job->plan);
	added->plan->n_jobs++;
	added->done = done;
	added->data = data;
	fill_ranges(engine->broker, added);
	each_slot(engine->broker, slots, pin);
	append(engine, added);
	pump(engine);
	return 0;
}

/* It is in no list any more: call back, then let go of everything. */
static void finish_job(struct engine *engine, struct engine_job *job,
		       const struct job_done *done)
{
	if (done->code < 0) {
		engine->n_failed++;
	} else if (job->job.kind == JOB_GATHER) {
		engine->n_gathers++;
		engine->bytes_gathered += done->n_bytes;
	} else {
		engine->n_reductions++;
		engine->bytes_reduced += done->n_bytes;
	}
	engine->n_jobs--;
	job->done(job->data, done);
	each_slot(engine->broker, &job->slots, unpin);
	catalog_commit(&engine->broker->catalog);
	job->plan->n_jobs--;
	drop_plan(engine, job->plan);
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
		done.number = job->job.number;
		finish_job(engine, job, &done);
	}
}

/* Those that the worker has, out of the list. */
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

/* The sent job of that number, out of the list. NULL: the worker has none. */
static struct engine_job *take_job(struct engine *engine, uint64_t number)
{
	struct engine_job **at = &engine->first, *previous = NULL, *job;

	while (*at != engine->unsent && (*at)->job.number != number) {
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

/* --- what the worker says --------------------------------------------------
 */

static void take_hello(struct engine *engine, struct job_hello *hello)
{
	struct engine_worker *worker = engine->worker;

	hello->version[sizeof(hello->version) - 1] = '\0';
	hello->cpu[sizeof(hello->cpu) - 1] = '\0';
	if (engine->is_ready) {
		worker_lose(worker, "it said hello twice");
		return;
	}
	if (hello->protocol != JOB_PROTOCOL ||
	    strcmp(hello->version, FSDP_VERSION) != 0) {
		worker_lose(worker,
			    "it says that it is of version %s (protocol "
			    "%" PRIu32 "), but this broker is of %s (%d); "
			    "install both from one build",
			    hello->version, hello->protocol, FSDP_VERSION,
			    JOB_PROTOCOL);
		return;
	}
	engine->is_ready = true;
	memcpy(engine->cpu, hello->cpu, sizeof(engine->cpu));
	broker_log(LOG_LEVEL_INFO, "fsdp-worker (pid %d) has %u threads (%s)",
		   (int)worker->pid, hello->n_threads, hello->cpu);
	pump(engine);
}

static void take_done(struct engine *engine, struct job_done *done)
{
	struct engine_job *job = NULL;

	if (done->code <= 0)
		job = take_job(engine, done->number);
	if (!job) {
		worker_lose(engine->worker,
			    "it speaks of job %" PRIu64 ", which it was not "
			    "given",
			    done->number);
		return;
	}
	done->sentence[sizeof(done->sentence) - 1] = '\0';
	engine->is_proven = true;
	finish_job(engine, job, done);
}

/* One message; false: there is none, or no more is believed. Who hung up is
 * listened to until the end: what it says to have done is done. */
static bool receive(struct engine *engine)
{
	struct engine_worker *worker = engine->worker;
	union message message;
	ssize_t n;

	do
		n = recv(worker->link_fd, &message, sizeof(message),
			 MSG_DONTWAIT | MSG_TRUNC);
	/* A reset is told once, before what it had said until then. */
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
		worker_lose(worker, "it sent what is no message");
	return worker->cause.code == 0;
}

static void on_link(uv_poll_t *poll, int status, int events)
{
	struct engine_worker *worker = poll->data;
	struct engine *engine = worker->engine;
	int n = 0;

	(void)status;
	/* Readable or not: a hang-up is told by either. */
	(void)events;
	do
		n++;
	/* Who owes nothing has said nothing more. */
	while (receive(engine) && n < DONE_PER_ROUND &&
	       engine->first != engine->unsent);
	pump(engine);
}

/* --- its life --------------------------------------------------------------
 */

static void on_watch(void *data, uint32_t index)
{
	struct engine *engine = data;

	(void)index;
	if (engine->is_ready && engine->first == engine->unsent)
		return;
	if (++engine->n_silent >= MAX_SILENT)
		worker_lose(engine->worker,
			    "it said nothing for %d minutes, though it has "
			    "work",
			    (MAX_SILENT - 1) * WATCH_MS / 60000);
	else
		watch_silence(engine);
}

/* The worker owes something from now on. */
static void watch_silence(struct engine *engine)
{
	struct deadline deadline = {
		.at_ms = now_ms() + WATCH_MS,
		.fn = on_watch,
		.data = engine,
		.position = &engine->watch_position,
	};

	if (engine->watch_position)
		return;
	/* Without memory for it the next job tries again. */
	(void)deadlines_add(&engine->broker->deadlines, &deadline, NULL);
}

static int check_deaths(const struct engine *engine, struct error *err)
{
	uint64_t again_ms = engine->died_ms + BACK_OFF_MS;
	uint64_t now = now_ms();

	if (engine->n_quick_deaths < MAX_QUICK_DEATHS || now >= again_ms)
		return 0;
	return error_set(err, -EAGAIN,
			 "fsdp-worker has died %" PRIu32 " times in a row just "
			 "after its start, and is tried again in %" PRIu64
			 " s; the last time: %s",
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
		r = worker_start(engine, on_link, on_pidfd, &engine->worker,
				 err);
	if (r < 0)
		return r;
	engine->pid = engine->worker->pid;
	engine->started_ms = now_ms();
	engine->is_proven = false;
	engine->n_silent = 0;
	engine->n_starts++;
	broker_log(LOG_LEVEL_INFO, "fsdp-worker (pid %d) was started",
		   engine->pid);
	watch_silence(engine);
	point("engine.started");
	return 0;
}

/* There is no worker any more: nothing is sent. */
static void forget_worker(struct engine *engine)
{
	struct engine_plan *plan, *next;

	worker_free(engine->worker);
	engine->worker = NULL;
	engine->pid = 0;
	engine->is_ready = false;
	engine->has_stale = false;
	deadlines_remove(&engine->broker->deadlines, &engine->watch_position);
	memset(engine->sent_chunks, 0, sizeof(engine->sent_chunks));
	for (plan = engine->plans; plan; plan = next) {
		next = plan->next;
		plan->is_sent = false;
		drop_plan(engine, plan);
	}
}

static void note_death(struct engine *engine)
{
	engine->died_ms = now_ms();
	if (!engine->is_proven &&
	    engine->died_ms - engine->started_ms < QUICK_MS)
		engine->n_quick_deaths++;
	else
		engine->n_quick_deaths = 0;
	broker_log(LOG_LEVEL_ERROR, "%s", engine->death.msg);
}

/* Jobs that no worker has had yet go to a new one. */
static void start_again(struct engine *engine)
{
	struct error err = ERROR_NULL;

	if (!engine->first || engine_want(engine, &err) == 0)
		return;
	broker_log(LOG_LEVEL_ERROR, "%s", err.msg);
	fail_jobs(engine, take_all(engine), &err);
}

/* The process is gone, and with it all that could write. What it had done, it
 * has said. */
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
		free_plan(engine, engine->plans);
}
