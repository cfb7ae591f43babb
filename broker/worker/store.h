/*
 * What the worker knows: chunks, which are mapped once, and plans, which are
 * read and checked once. Chunks of devices are mapped by the threads that use
 * them (device_chunk.h).
 *
 * The link's thread adds, forgets and finds; running jobs hold references, on
 * any thread. What is forgotten can no longer be found, and is freed with the
 * last job that uses it.
 */
#pragma once
#include "collective/host/layout.h"
#include "collective/job.h"
#include <stdatomic.h>

struct device_chunk;
struct error;

struct store_chunk {
	atomic_uint n_refs; /* one of the store, and one for each user */
	uint32_t id;
	uint64_t size;
	uint8_t *base;               /* mapped read-write; NULL for a device */
	struct device_chunk *device; /* owned; NULL for host memory */
};

struct store_plan {
	atomic_uint n_refs;
	atomic_bool is_forgotten; /* for those that keep it longer than a job */
	uint64_t number;
	struct layout *layout;
};

struct store {
	void *chunks, *plans; /* trees, by number */
};
#define STORE_NULL ((struct store){0})

void store_deinit(struct store *store);

/* The fds stay the caller's, and are not needed afterwards. */
int store_add_chunk(struct store *store, const struct job_chunk *chunk, int fd,
		    struct error *err);
int store_add_plan(struct store *store, const struct job_plan *plan, int fd,
		   struct error *err);

/* -ENOENT: it is not known. */
int store_forget_chunk(struct store *store, uint32_t id, struct error *err);
int store_forget_plan(struct store *store, uint64_t number, struct error *err);

/*
 * Find it, and give a reference that the caller releases. -ENOENT: it is not
 * known. For a range (`what`, at least `size` bytes) -EINVAL: the range is not
 * in the chunk, too small, or not aligned to PLAN_ALIGN.
 */
int store_ref_plan(struct store *store, uint64_t number,
		   struct store_plan **ret, struct error *err);
int store_ref_range(struct store *store, const struct job_range *range,
		    uint64_t size, const char *what, struct store_chunk **ret,
		    struct error *err);

/* Add a reference, on any thread that has one already. */
struct store_plan *store_keep_plan(struct store_plan *plan);

/* NULL is fine. */
void store_unref_chunk(struct store_chunk *chunk);
void store_unref_plan(struct store_plan *plan);
