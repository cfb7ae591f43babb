/*
 * Works: what is done to chunks on libuv's threads.
 *
 * The kernel locks a file while a process writes to it, also while it waits for
 * the bytes. A process that may write a chunk can let it wait for ever, by
 * bytes in a mapping that does not answer, such as that of a FUSE file.
 * Whatever a thread does to the file then waits as long. So two works of each
 * user on host memory are on threads at a time, and its others wait.
 */
#include "broker/memory/pool_impl.h"
#include "proto/failpoint.h"
#include <assert.h>
#include <stdlib.h>
#include <unistd.h>

#define MAX_USER_WORKS 2

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

static void on_run(uv_work_t *req)
{
	struct pool_work *work = req->data;

	work->kind->run(work);
}

static void on_done(uv_work_t *req, int status);

static void begin(struct pool_work *work)
{
	int r = uv_queue_work(&work->pools->base->loop.uv, &work->req, on_run,
			      on_done);

	/* uv_queue_work() fails only without a work function. */
	assert(r == 0);
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

static void on_done(uv_work_t *req, int status)
{
	struct pool_work *work = req->data;

	(void)status; /* the work is never cancelled */
	work->pools->n_works--;
	work->source->n_works--;
	if (work->account)
		begin_next(work->account);
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

	work->req.data = work;
	work->pools->n_works++;
	work->source->n_works++;
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
