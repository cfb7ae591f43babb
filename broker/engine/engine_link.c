/*
 * The link to the worker: which messages it needs, and when.
 *
 * There is no queue of messages. They are derived when the link has space:
 * first those about objects that the worker can forget, then those about the
 * plan and the chunks that the next job needs and the worker does not have,
 * then the job. If the link is full, all of that waits. Sending therefore
 * allocates nothing, and a worker that does not read only delays jobs.
 */
#include "broker/base/deadline.h"
#include "broker/engine/engine_impl.h"
#include "broker/tensor/store.h"
#include "proto/failpoint.h"
#include "shm/memfd.h"
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* After a shortage, sending is tried again after this time at the latest. */
#define RETRY_MS 100

/* --- plans --------------------------------------------------------------- */

static void link_plan(struct engine_plan **list, struct engine_plan *plan)
{
	plan->at = list;
	plan->next = *list;
	if (plan->next)
		plan->next->at = &plan->next;
	*list = plan;
}

static void unlink_plan(struct engine_plan *plan)
{
	*plan->at = plan->next;
	if (plan->next)
		plan->next->at = plan->at;
}

int engine_add_plan(struct engine *engine, const struct plan *plan,
		    struct engine_plan **ret, struct error *err)
{
	size_t size = plan->n_entries * sizeof(plan->entries[0]);
	struct engine_plan *added = calloc(1, sizeof(*added));

	if (added)
		added->entries = malloc(size);
	if (!added || !added->entries) {
		free(added);
		return error_nomem(err, "a plan");
	}
	memcpy(added->entries, plan->entries, size);
	added->message = (struct job_plan){
		.kind = JOB_PLAN,
		.n_entries = plan->n_entries,
		.plan = engine->next_plan++,
		.n_shards = plan->n_shards,
		.n_replicas = plan->n_replicas,
		.layout = (uint32_t)plan->policy.layout,
		.is_per_rank = plan->policy.is_per_rank,
		.n_gather_buckets = plan->n_gather_buckets,
		.n_reduce_buckets = plan->n_reduce_buckets,
		.shards_size = plan->shards_size,
		.full_size = plan->full_size,
		.input_size = plan->input_size,
		.grads_size = plan->grads_size,
		.partial_size = plan->partial_size,
	};
	link_plan(&engine->plans, added);
	*ret = added;
	return 0;
}

void engine_free_plan(struct engine_plan *plan)
{
	unlink_plan(plan);
	free(plan->entries);
	free(plan);
}

void engine_drop_plan(struct engine *engine, struct engine_plan *plan)
{
	if (!plan->is_removed || plan->n_jobs > 0)
		return;
	if (!plan->is_sent) {
		engine_free_plan(plan);
		return;
	}
	unlink_plan(plan);
	link_plan(&engine->stale_plans, plan);
	engine->has_stale = true;
}

/* --- communicators ------------------------------------------------------- */

struct engine_comm *engine_find_comm(const struct engine *engine, uint64_t id)
{
	struct engine_comm *comm = engine->comms;

	while (comm && comm->id != id)
		comm = comm->next;
	assert(comm); /* the broker made the id */
	return comm;
}

bool engine_has_lost(const struct engine *engine, uint64_t comm)
{
	return engine_find_comm(engine, comm)->is_lost;
}

void engine_drop_comm(struct engine *engine, struct engine_comm *comm)
{
	struct engine_comm **at = &engine->comms;

	if (!comm->is_removed || comm->is_sent || comm->n_jobs > 0)
		return;
	while (*at != comm)
		at = &(*at)->next;
	*at = comm->next;
	for (uint32_t i = 0; i < PLAN_MAX_RANKS; i++)
		if (comm->timelines[i] > 0)
			close(comm->timelines[i]);
	free(comm);
}

int engine_add_timelines(struct engine *engine, uint64_t comm, uint32_t member,
			 int fd, struct error *err)
{
	int *at = &engine_find_comm(engine, comm)->timelines[member];
	int own;

	if (*at)
		return 0;
	own = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	if (own < 0)
		return error_errno(
			err, -errno,
			"cannot duplicate the descriptor of timelines");
	*at = own;
	return 0;
}

/* --- the link ------------------------------------------------------------ */

/* Returns 0 or a negative errno; -EAGAIN means that the link is full. */
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
	ssize_t n = failpoint_fail("engine.send");

	if (n < 0)
		return (int)n;
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
		engine_free_plan(plan);
	return r;
}

/* Tell the worker to forget communicators. This comes first, since their work
 * may wait for ranks that have left. */
static int forget_comms(struct engine *engine)
{
	struct engine_comm *comm, *next;
	int r = 0;

	for (comm = engine->comms; comm && r == 0; comm = next) {
		struct job_forget_comm message = {.kind = JOB_FORGET_COMM,
						  .comm = comm->id};

		next = comm->next;
		if (!comm->is_removed || !comm->is_sent)
			continue;
		r = send_message(engine->worker, &message, sizeof(message), -1);
		if (r < 0)
			break;
		comm->is_sent = false;
		engine_drop_comm(engine, comm);
	}
	return r;
}

static int forget_chunks(struct engine *engine)
{
	const struct catalog *catalog = &engine->store->catalog;
	int r = 0;

	if (!engine->has_stale_chunks)
		return 0;
	for (uint32_t i = 1; i < TABLE_CHUNKS && r == 0; i++) {
		if (engine->sent_chunks[i] &&
		    catalog_chunk(catalog, i)->id != engine->sent_chunks[i])
			r = forget_chunk(engine, i);
	}
	if (r == 0)
		engine->has_stale_chunks = false;
	return r;
}

/* Tell the worker to forget everything that it no longer needs. */
static int send_stale(struct engine *engine)
{
	int r = forget_comms(engine);

	if (r == 0)
		r = forget_chunks(engine);
	while (r == 0 && engine->stale_plans)
		r = forget_plan(engine, engine->stale_plans);
	if (r == 0)
		engine->has_stale = false;
	return r;
}

static int send_chunk(struct engine *engine, uint32_t slot)
{
	const struct catalog *catalog = &engine->store->catalog;
	struct job_chunk message = {.kind = JOB_CHUNK};
	uint32_t index;
	int r = 0;

	index = catalog_block(catalog, catalog_slot(catalog, slot)->block)
			->chunk;
	message.chunk = catalog_chunk(catalog, index)->id;
	message.size = catalog_chunk(catalog, index)->size;
	message.device = catalog_chunk(catalog, index)->device;
	if (engine->sent_chunks[index] == message.chunk)
		return 0;
	if (engine->sent_chunks[index])
		r = forget_chunk(engine, index);
	if (r == 0)
		r = send_message(engine->worker, &message, sizeof(message),
				 engine->store->pools.chunks[index].fd);
	if (r == 0)
		engine->sent_chunks[index] = message.chunk;
	return r;
}

static int send_chunks(struct engine *engine, const struct engine_job *job)
{
	int r = 0;

	for (uint32_t i = 0; i < job->n_slots && r == 0; i++)
		r = send_chunk(engine, job->slots[i]);
	return r;
}

/* Store the entries of a plan in a memfd that only the worker keeps, because
 * there may be many groups, and descriptors are scarce. */
static int store_entries(const struct engine_plan *plan, int *ret_fd)
{
	size_t size = plan->message.n_entries * sizeof(plan->entries[0]);
	ssize_t n;
	int fd, r;

	r = memfd_create_sealed("fsdpd-plan", size, MEMFD_SEAL_SIZE, &fd, NULL);
	if (r < 0)
		return r;
	n = pwrite(fd, plan->entries, size, 0);
	if (n < 0)
		r = -errno;
	else
		r = (size_t)n == size ? 0 : -EIO;
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

static int send_timelines(struct engine *engine, struct engine_comm *comm)
{
	int r = 0;

	for (uint32_t i = 0; i < PLAN_MAX_RANKS && r == 0; i++) {
		struct job_timelines message = {
			.kind = JOB_TIMELINES, .member = i, .comm = comm->id};

		if (comm->timelines[i] <= 0)
			continue;
		r = send_message(engine->worker, &message, sizeof(message),
				 comm->timelines[i]);
		if (r < 0)
			break;
		close(comm->timelines[i]);
		comm->timelines[i] = ENGINE_TIMELINES_SENT;
	}
	return r;
}

static int send_job(struct engine *engine, struct engine_job *job)
{
	int r = 0;

	if (job->plan)
		r = send_plan(engine, job->plan);
	if (r == 0)
		r = send_chunks(engine, job);
	if (r == 0 && job->message.kind == JOB_DEVICE_REDUCE)
		r = send_timelines(engine, job->comm);
	if (r == 0)
		r = send_message(engine->worker, &job->message, job->size, -1);
	if (r < 0)
		return r;
	engine->unsent = job->next;
	if (job->message.kind == JOB_COMM) {
		job->comm->is_sent = true;
		engine->has_stale |= job->comm->is_removed;
	}
	engine_watch_silence(engine);
	return 0;
}

/* Returns whether the error is a shortage of this process or node, which a link
 * that works may have. */
static bool is_shortage(int r)
{
	return r == -EMFILE || r == -ENFILE || r == -ENOMEM || r == -ENOSPC ||
	       r == -ENOBUFS || r == -ETOOMANYREFS;
}

static void on_retry(void *data, uint32_t index)
{
	(void)index;
	engine_pump(data);
}

/* No job fails because a message that ends something cannot be sent. */
static void pump_later(struct engine *engine)
{
	struct deadline deadline = {
		.at_ms = now_ms() + RETRY_MS,
		.fn = on_retry,
		.data = engine,
		.position = &engine->retry_position,
	};

	/* If memory runs out, the next job tries again. */
	if (!engine->retry_position)
		(void)deadlines_add(&engine->store->base->deadlines, &deadline,
				    NULL);
}

void engine_pump(struct engine *engine)
{
	struct engine_worker *worker = engine->worker;
	bool is_stale = false;
	int r = 0;

	if (!worker || worker->is_lost || !engine->is_ready)
		return;
	while (r == 0 && (engine->has_stale || engine->unsent)) {
		is_stale = engine->has_stale;
		r = is_stale ? send_stale(engine)
			     : send_job(engine, engine->unsent);
	}
	if (is_stale && is_shortage(r)) {
		pump_later(engine);
		r = 0;
	}
	if (r == -EPIPE || r == -ECONNRESET) {
		worker_lose(worker, NULL);
		return;
	}
	engine->shortage = is_shortage(r) && engine->unsent ? r : 0;
	if (r < 0 && r != -EAGAIN && !is_shortage(r)) {
		worker_lose(worker, "nothing can be sent to it: %s",
			    strerror(-r));
		return;
	}
	if (worker->is_full == (r == -EAGAIN || engine->shortage))
		return;
	worker->is_full = !worker->is_full;
	worker_watch_link(worker,
			  UV_READABLE | (worker->is_full ? UV_WRITABLE : 0),
			  engine_on_link);
}

void engine_remove_plan(struct engine *engine, struct engine_plan *plan)
{
	plan->is_removed = true;
	engine_drop_plan(engine, plan);
	engine_pump(engine);
}

void engine_forget_chunk(struct engine *engine, uint32_t chunk_index)
{
	if (!engine->sent_chunks[chunk_index])
		return;
	engine->has_stale = engine->has_stale_chunks = true;
	engine_pump(engine);
}

void engine_forget_comm(struct engine *engine, uint64_t comm)
{
	struct engine_comm *removed = engine_find_comm(engine, comm);

	removed->is_removed = true;
	engine->has_stale |= removed->is_sent;
	engine_drop_comm(engine, removed);
	engine_pump(engine);
}
