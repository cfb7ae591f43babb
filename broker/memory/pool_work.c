/*
 * Works: what is done to chunks on threads.
 *
 * The kernel locks a file while a process writes to it, also while it waits for
 * the bytes. A process that may write a chunk can let it wait for ever, by
 * bytes in a mapping that does not answer, such as that of a FUSE file.
 * Whatever a thread does to the file then waits as long. So works on such files
 * have threads of their own, two for each user at a time, and the user's other
 * works wait. So does a work for which the kernel refuses a thread. All else is
 * done on libuv's threads, which wait for no process.
 */
#include "broker/memory/pool_impl.h"
#include "proto/failpoint.h"
#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#define MAX_USER_WORKS 2
/* Requests for memory wait so long for a work that may wait for a process, and
 * as long again for each GiB of its chunk, and of those of the user that have
 * works before it. Those that are late do not count: a user whose works are
 * stuck must not let others wait long for each new one. */
#define LATE_MS UINT64_C(1000)
/* If the kernel refuses a thread, the work is tried again after this time. */
#define RETRY_MS 100

struct pool_work *pool_work_new(struct pool_source *source,
				const struct pool_work_kind *kind,
				uint32_t n_ranges)
{
	struct pool_work *work = NULL;

	if (failpoint_fail("pool.malloc") == 0)
		work = calloc(1, sizeof(*work) +
					 n_ranges * sizeof(work->ranges[0]));
	if (!work)
		return NULL;
	work->pools = source->pools;
	work->source = source;
	work->kind = kind;
	work->fd = -1;
	work->readonly_fd = -1;
	work->n_ranges = n_ranges;
	return work;
}

struct pool_work *pool_work_on(struct pools *pools, uint32_t index,
			       const struct pool_work_kind *kind,
			       uint32_t n_ranges)
{
	struct chunk *chunk = &pools->chunks[index];
	struct account *account = accounts_get(
		&pools->base->accounts, pool_record(pools, index)->access.uid);
	struct pool_work *work = NULL;

	if (account)
		work = pool_work_new(chunk->pool->source, kind, n_ranges);
	if (!work)
		return NULL;
	/* The memory of a device has no lock that a process could keep. */
	if (pool_source_is_host(work->source))
		work->account = account;
	work->chunk = index;
	work->fd = chunk->fd;
	return work;
}

static void end(struct pool_work *work);

static void on_run(uv_work_t *req)
{
	struct pool_work *work = req->data;

	work->kind->run(work);
}

static void on_done(uv_work_t *req, int status)
{
	(void)status; /* the work is never cancelled */
	end(req->data);
}

static void share_threads(struct pool_work *work)
{
	int r;

	work->req.data = work;
	r = uv_queue_work(&work->pools->base->loop.uv, &work->req, on_run,
			  on_done);
	/* uv_queue_work() fails only without a work function. */
	assert(r == 0);
}

static void *run_alone(void *data)
{
	struct pool_work *work = data;

	work->kind->run(work);
	(void)uv_async_send(&work->alone);
	return NULL;
}

static void on_closed(uv_handle_t *handle)
{
	end(handle->data);
}

static void on_end(uv_async_t *alone)
{
	uv_close((uv_handle_t *)alone, on_closed);
}

static void begin(struct pool_work *work);

static void on_retry_closed(uv_handle_t *retry)
{
	begin(retry->data);
}

static void on_retry(uv_timer_t *retry)
{
	uv_close((uv_handle_t *)retry, on_retry_closed);
}

static void on_no_thread(uv_handle_t *alone)
{
	struct pool_work *work = alone->data;

	(void)uv_timer_init(&work->pools->base->loop.uv, &work->retry);
	work->retry.data = work;
	(void)uv_timer_start(&work->retry, on_retry, RETRY_MS, 0);
}

static void begin(struct pool_work *work)
{
	struct loop *loop = &work->pools->base->loop;
	pthread_t thread;
	int r;

	/* While the broker stops, no other work needs libuv's threads. */
	if (!work->account || loop->is_stopping) {
		share_threads(work);
		return;
	}
	r = uv_async_init(&loop->uv, &work->alone, on_end);
	assert(r == 0); /* it fails only for the first one of a loop */
	work->alone.data = work;
	if (failpoint_fail("pool.thread") < 0 ||
	    pthread_create(&thread, NULL, run_alone, work) != 0)
		uv_close((uv_handle_t *)&work->alone, on_no_thread);
	else
		(void)pthread_detach(thread);
}

/* A work of the user has ended. The first one that waits begins, if there is
 * one. */
static void begin_next(struct account *account)
{
	struct pool_work *next = account->first_work;

	if (!next) {
		account->n_works--;
		return;
	}
	account->first_work = next->next;
	begin(next);
}

static uint64_t chunk_size(const struct pool_work *work)
{
	return pool_record(work->pools, work->chunk)->size;
}

/* Requests for memory do not wait for the chunk's work any more: what the chunk
 * has counts as memory in use. */
static void on_late(void *data, uint32_t index)
{
	struct pool_work *work = data;
	struct pools *pools = work->pools;
	struct chunk *chunk = &pools->chunks[index];

	work->account->work_size -= chunk_size(work);
	work->source->n_works--;
	if (pool_is_going(chunk))
		work->source->going_size -= pool_chunk_size(pools, index);
	chunk->is_late = true;
	wake_room(&pools->base->wake);
}

/* The chunk's work has ended. */
static void end_late(struct pool_work *work)
{
	struct pools *pools = work->pools;
	struct chunk *chunk = &pools->chunks[work->chunk];

	work->account->work_size += chunk_size(work);
	work->source->n_works++;
	chunk->is_late = false;
	if (pool_is_going(chunk))
		work->source->going_size += pool_chunk_size(pools, work->chunk);
}

static void watch(struct pool_work *work)
{
	struct pools *pools = work->pools;
	uint64_t size = work->account->work_size;
	struct deadline deadline = {
		.at_ms = now_ms() + LATE_MS + LATE_MS * (size >> 20) / 1024,
		.fn = on_late,
		.data = work,
		.index = work->chunk,
		.position = &work->late_position,
	};

	/* If memory runs out, requests wait until the work ends. */
	if (!pools->base->loop.is_stopping)
		(void)deadlines_add(&pools->base->deadlines, &deadline, NULL);
}

static void end(struct pool_work *work)
{
	struct pools *pools = work->pools;

	deadlines_remove(&pools->base->deadlines, &work->late_position);
	if (work->account && pools->chunks[work->chunk].is_late)
		end_late(work);
	pools->n_works--;
	work->source->n_works--;
	if (work->account) {
		work->account->work_size -= chunk_size(work);
		begin_next(work->account);
	}
	work->kind->done(work);
}

/* The work waits until others of its user have ended. */
static void append(struct account *account, struct pool_work *work)
{
	work->next = NULL;
	if (account->first_work)
		account->last_work->next = work;
	else
		account->first_work = work;
	account->last_work = work;
}

void pool_work_queue(struct pool_work *work)
{
	struct account *account = work->account;

	work->pools->n_works++;
	work->source->n_works++;
	if (account) {
		account->work_size += chunk_size(work);
		watch(work);
	}
	if (account && account->n_works == MAX_USER_WORKS) {
		append(account, work);
		return;
	}
	if (account)
		account->n_works++;
	begin(work);
}

/* --- closing ------------------------------------------------------------- */

/* Runs on a thread: the last close of a large file takes milliseconds, since it
 * frees the pages. */
static void run_close(struct pool_work *work)
{
	if (work->fd >= 0)
		close(work->fd);
	if (work->readonly_fd >= 0)
		close(work->readonly_fd);
}

static void done_close(struct pool_work *work)
{
	work->source->total_size -= work->size;
	if (work->is_going)
		work->source->going_size -= work->size;
	/* The driver may now have more memory than at the last attempt. */
	pool_forget_refusals(work->source);
	wake_room(&work->pools->base->wake);
	free(work);
}

static const struct pool_work_kind work_close = {run_close, done_close};

void pool_work_close(struct pool_work *work)
{
	work->kind = &work_close;
	work->account = NULL; /* the last close needs no lock of the file */
	pool_work_queue(work);
}
