/*
 * Works: what is done to chunks on libuv's threads.
 */
#include "broker/memory/pool_impl.h"
#include "proto/failpoint.h"
#include <assert.h>
#include <stdlib.h>
#include <unistd.h>

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

static void on_run(uv_work_t *req)
{
	struct pool_work *work = req->data;

	work->kind->run(work);
}

static void on_done(uv_work_t *req, int status)
{
	struct pool_work *work = req->data;

	(void)status; /* the work is never cancelled */
	work->pools->n_works--;
	work->source->n_works--;
	work->kind->done(work);
}

void pool_work_queue(struct pool_work *work)
{
	int r;

	work->req.data = work;
	work->pools->n_works++;
	work->source->n_works++;
	r = uv_queue_work(&work->pools->base->loop.uv, &work->req, on_run,
			  on_done);
	/* uv_queue_work() fails only without a work function. */
	assert(r == 0);
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
	pool_work_queue(work);
}
