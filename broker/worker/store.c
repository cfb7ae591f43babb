/*
 * Two small trees of reference-counted objects.
 *
 * Only the link's thread touches the trees, so no lock is needed; counts are
 * atomic because jobs end on other threads.
 */
#include "broker/worker/store.h"
#include "broker/worker/device_chunk.h"
#include "proto/error.h"
#include "shm/memfd.h"
#include <errno.h>
#include <inttypes.h>
#include <search.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static int compare_numbers(uint64_t a, uint64_t b)
{
	return a < b ? -1 : a > b;
}

static int compare_chunks(const void *a, const void *b)
{
	const struct store_chunk *x = a, *y = b;

	return compare_numbers(x->id, y->id);
}

static int compare_plans(const void *a, const void *b)
{
	const struct store_plan *x = a, *y = b;

	return compare_numbers(x->number, y->number);
}

/* Release: the job's writes come before its end. */
void store_unref_chunk(struct store_chunk *chunk)
{
	if (!chunk || atomic_fetch_sub_explicit(&chunk->n_refs, 1,
						memory_order_acq_rel) > 1)
		return;
	if (chunk->base)
		(void)munmap(chunk->base, chunk->size);
	device_chunk_free(chunk->device);
	free(chunk);
}

void store_unref_plan(struct store_plan *plan)
{
	if (!plan || atomic_fetch_sub_explicit(&plan->n_refs, 1,
					       memory_order_acq_rel) > 1)
		return;
	layout_free(plan->layout);
	free(plan);
}

static void unref_chunk_node(void *chunk)
{
	store_unref_chunk(chunk);
}

static void unref_plan_node(void *plan)
{
	store_unref_plan(plan);
}

void store_deinit(struct store *store)
{
	tdestroy(store->chunks, unref_chunk_node);
	tdestroy(store->plans, unref_plan_node);
	*store = STORE_NULL;
}

/* --- chunks -------------------------------------------------------------- */

static struct store_chunk *find_chunk(struct store *store, uint32_t id)
{
	const struct store_chunk key = {.id = id};
	struct store_chunk **node = tfind(&key, &store->chunks, compare_chunks);

	return node ? *node : NULL;
}

static int map_host(struct store_chunk *chunk, int fd, struct error *err)
{
	void *base;
	int r = memfd_check(fd, chunk->size, NULL, err);

	if (r >= 0)
		r = memfd_map(fd, chunk->size, true, &base, err);
	if (r >= 0)
		chunk->base = base;
	return r;
}

static int make_chunk(const struct job_chunk *message, int fd,
		      struct store_chunk **ret, struct error *err)
{
	struct store_chunk *chunk = calloc(1, sizeof(*chunk));
	int r;

	if (!chunk)
		return error_nomem(err, "it");
	chunk->id = message->chunk;
	chunk->size = message->size;
	atomic_init(&chunk->n_refs, 1);
	if (device_uuid_is_host(&message->device))
		r = map_host(chunk, fd, err);
	else
		r = device_chunk_new(&message->device, message->size, fd,
				     &chunk->device, err);
	if (r < 0) {
		free(chunk);
		return r;
	}
	*ret = chunk;
	return 0;
}

int store_add_chunk(struct store *store, const struct job_chunk *message,
		    int fd, struct error *err)
{
	struct store_chunk *chunk = NULL;
	int r;

	if (find_chunk(store, message->chunk))
		return error_set(err, -EEXIST, "chunk %u exists already",
				 message->chunk);
	r = make_chunk(message, fd, &chunk, err);
	if (r < 0)
		return error_wrap(err, r, "chunk %u", message->chunk);
	if (!tsearch(chunk, &store->chunks, compare_chunks)) {
		store_unref_chunk(chunk);
		return error_nomem(err, "chunk %u", message->chunk);
	}
	return 0;
}

int store_forget_chunk(struct store *store, uint32_t id, struct error *err)
{
	struct store_chunk *chunk = find_chunk(store, id);

	if (!chunk)
		return error_set(err, -ENOENT, "there is no chunk %u", id);
	(void)tdelete(chunk, &store->chunks, compare_chunks);
	store_unref_chunk(chunk);
	return 0;
}

int store_ref_range(struct store *store, const struct job_range *range,
		    uint64_t size, const char *what, struct store_chunk **ret,
		    struct error *err)
{
	struct store_chunk *chunk = find_chunk(store, range->chunk);

	if (!chunk)
		return error_set(err, -ENOENT, "the %s: there is no chunk %u",
				 what, range->chunk);
	if (range->offset > chunk->size ||
	    range->size > chunk->size - range->offset)
		return error_set(err, -EINVAL,
				 "the %s extend beyond the end of chunk %u",
				 what, range->chunk);
	if (range->size < size || range->offset % PLAN_ALIGN != 0)
		return error_set(
			err, -EINVAL,
			"the %s have %" PRIu64 " bytes at offset %" PRIu64
			", but need %" PRIu64 " at a multiple of %d",
			what, range->size, range->offset, size, PLAN_ALIGN);
	atomic_fetch_add_explicit(&chunk->n_refs, 1, memory_order_relaxed);
	*ret = chunk;
	return 0;
}

/* --- plans --------------------------------------------------------------- */

static struct store_plan *find_plan(struct store *store, uint64_t number)
{
	const struct store_plan key = {.number = number};
	struct store_plan **node = tfind(&key, &store->plans, compare_plans);

	return node ? *node : NULL;
}

/* This is a copy, since the broker's file could change after the checks. */
static int read_entries(int fd, uint32_t n, struct plan_entry **ret,
			struct error *err)
{
	struct plan_entry *entries;
	size_t size = n * sizeof(*entries);
	ssize_t n_read;

	if (n == 0 || n > PLAN_MAX_PARAMS)
		return error_set(err, -EINVAL, "it has %u entries, not 1 to %d",
				 n, PLAN_MAX_PARAMS);
	entries = malloc(size);
	if (!entries)
		return error_nomem(err, "it");
	n_read = pread(fd, entries, size, 0);
	if (n_read < 0 || (size_t)n_read != size) {
		int r = n_read < 0 ? -errno : -EINVAL;

		free(entries);
		return error_set(err, r, "its file does not have %u entries",
				 n);
	}
	*ret = entries;
	return 0;
}

static struct plan plan_of(const struct job_plan *message,
			   struct plan_entry *entries)
{
	return (struct plan){
		.n_shards = message->n_shards,
		.n_replicas = message->n_replicas,
		.policy = {.layout = (enum plan_layout)message->layout,
			   .is_per_rank = message->is_per_rank},
		.n_entries = message->n_entries,
		.entries = entries,
		.n_gather_buckets = message->n_gather_buckets,
		.n_reduce_buckets = message->n_reduce_buckets,
		.shards_size = message->shards_size,
		.full_size = message->full_size,
		.input_size = message->input_size,
		.grads_size = message->grads_size,
		.partial_size = message->partial_size,
	};
}

static int make_plan(const struct job_plan *message, int fd,
		     struct store_plan **ret, struct error *err)
{
	struct store_plan *plan;
	struct plan_entry *entries = NULL;
	struct plan content;
	int r = read_entries(fd, message->n_entries, &entries, err);

	if (r < 0)
		return r;
	content = plan_of(message, entries);
	plan = malloc(sizeof(*plan));
	if (plan)
		r = layout_new(&content, &plan->layout, err);
	else
		r = error_nomem(err, "it");
	free(entries);
	if (r < 0) {
		free(plan);
		return r;
	}
	plan->number = message->plan;
	atomic_init(&plan->n_refs, 1);
	atomic_init(&plan->is_forgotten, false);
	*ret = plan;
	return 0;
}

int store_add_plan(struct store *store, const struct job_plan *message, int fd,
		   struct error *err)
{
	struct store_plan *plan = NULL;
	int r;

	if (find_plan(store, message->plan))
		return error_set(err, -EEXIST,
				 "plan %" PRIu64 " exists already",
				 message->plan);
	r = make_plan(message, fd, &plan, err);
	if (r < 0)
		return error_wrap(err, r, "plan %" PRIu64, message->plan);
	if (!tsearch(plan, &store->plans, compare_plans)) {
		store_unref_plan(plan);
		return error_nomem(err, "plan %" PRIu64, message->plan);
	}
	return 0;
}

int store_forget_plan(struct store *store, uint64_t number, struct error *err)
{
	struct store_plan *plan = find_plan(store, number);

	if (!plan)
		return error_set(err, -ENOENT, "there is no plan %" PRIu64,
				 number);
	(void)tdelete(plan, &store->plans, compare_plans);
	atomic_store(&plan->is_forgotten, true);
	store_unref_plan(plan);
	return 0;
}

int store_ref_plan(struct store *store, uint64_t number,
		   struct store_plan **ret, struct error *err)
{
	struct store_plan *plan = find_plan(store, number);

	if (!plan)
		return error_set(err, -ENOENT, "there is no plan %" PRIu64,
				 number);
	*ret = store_keep_plan(plan);
	return 0;
}

struct store_plan *store_keep_plan(struct store_plan *plan)
{
	atomic_fetch_add_explicit(&plan->n_refs, 1, memory_order_relaxed);
	return plan;
}
