/*
 * The list of mapped chunks. There are few (chunks are large), so it is an
 * array that is searched from the start.
 */
#include "client/mapping.h"
#include "proto/error.h"
#include "shm/memfd.h"
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

void mappings_init(struct mappings *mappings)
{
	*mappings = (struct mappings){.list = NULL};
	pthread_mutex_init(&mappings->lock, NULL);
}

void mappings_deinit(struct mappings *mappings, bool is_forked)
{
	for (size_t i = 0; i < mappings->n; i++) {
		struct mapping *mapping = &mappings->list[i];

		if (!is_forked || !mapping->is_writable)
			(void)munmap(mapping->address, mapping->size);
	}
	free(mappings->list);
	mappings->list = NULL;
	mappings->n = mappings->capacity = 0;
}

static struct mapping *find(const struct mappings *mappings, uint32_t chunk)
{
	for (size_t i = 0; i < mappings->n; i++)
		if (mappings->list[i].chunk == chunk)
			return &mappings->list[i];
	return NULL;
}

static int make_writable(struct mapping *mapping, struct error *err)
{
	int r;

	if (mapping->is_writable)
		return 0;
	if (!mapping->may_write)
		return error_set(err, -EPROTO,
				 "fsdpd allocated in chunk %u, which it gave "
				 "read-only",
				 mapping->chunk);
	/* A child must not write what the parent still writes. */
	if (madvise(mapping->address, mapping->size, MADV_DONTFORK) < 0)
		return error_errno(err, -errno, "MADV_DONTFORK for chunk %u",
				   mapping->chunk);
	if (mprotect(mapping->address, mapping->size, PROT_READ | PROT_WRITE) <
	    0) {
		r = -errno;
		(void)madvise(mapping->address, mapping->size, MADV_DOFORK);
		return error_errno(err, r, "make chunk %u writable",
				   mapping->chunk);
	}
	mapping->is_writable = true;
	return 0;
}

static int map_new(struct mappings *mappings, const struct chunk_ref *chunk,
		   int fd, struct error *err)
{
	void *address;
	int r;

	if (mappings->n == mappings->capacity) {
		size_t capacity =
			mappings->capacity ? 2 * mappings->capacity : 8;
		struct mapping *list =
			reallocarray(mappings->list, capacity, sizeof(*list));

		if (!list)
			return error_set(err, -ENOMEM,
					 "no memory for a mapping");
		mappings->list = list;
		mappings->capacity = capacity;
	}
	r = memfd_map(fd, chunk->size, false, &address, err);
	if (r < 0)
		return r;
	mappings->list[mappings->n++] = (struct mapping){
		.chunk = chunk->chunk,
		.index = chunk->index,
		.size = chunk->size,
		.address = address,
		.may_write = chunk->is_writable,
	};
	return 0;
}

/* The fd of a reserved chunk came again, perhaps with other rights. */
static int map_again(struct mapping *mapping, const struct chunk_ref *chunk,
		     int fd, struct error *err)
{
	if (mapping->size != chunk->size)
		return error_set(err, -EPROTO, "chunk %u changed its size",
				 chunk->chunk);
	if (mmap(mapping->address, mapping->size, PROT_READ,
		 MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
		return error_errno(err, -errno, "map chunk %u again",
				   chunk->chunk);
	(void)madvise(mapping->address, mapping->size, MADV_HUGEPAGE);
	(void)madvise(mapping->address, mapping->size, MADV_DONTDUMP);
	mapping->may_write = chunk->is_writable;
	mapping->is_reserved = false;
	/* Writable before, writable again: its bundle is still staged. */
	return chunk->is_writable ? make_writable(mapping, err) : 0;
}

static int add(struct mappings *mappings, const struct chunk_ref *chunk, int fd,
	       struct error *err)
{
	struct mapping *mapping = find(mappings, chunk->chunk);
	int r;

	if (mapping && !mapping->is_reserved)
		return 0;
	if (chunk->index >= TABLE_CHUNKS)
		return error_set(err, -EPROTO,
				 "chunk %u has no place in the chunk list",
				 chunk->chunk);
	r = memfd_check(fd, chunk->size, NULL, err);
	if (r < 0)
		return r;
	return mapping ? map_again(mapping, chunk, fd, err)
		       : map_new(mappings, chunk, fd, err);
}

int mappings_add(struct mappings *mappings, const struct chunk_ref *chunk,
		 int fd, struct error *err)
{
	int r;

	pthread_mutex_lock(&mappings->lock);
	r = add(mappings, chunk, fd, err);
	pthread_mutex_unlock(&mappings->lock);
	(void)close(fd);
	return r;
}

static int find_span(struct mappings *mappings, uint32_t chunk,
		     bool is_writable, struct span *ret, struct error *err)
{
	struct mapping *mapping = find(mappings, chunk);
	int r;

	if (!mapping || mapping->is_reserved)
		return MAPPING_MISSING;
	if (is_writable) {
		r = make_writable(mapping, err);
		if (r < 0)
			return r;
	}
	*ret = (struct span){chunk, mapping->address, mapping->size};
	return MAPPING_OK;
}

int mappings_find(struct mappings *mappings, uint32_t chunk, bool is_writable,
		  struct span *ret, struct error *err)
{
	int r;

	pthread_mutex_lock(&mappings->lock);
	r = find_span(mappings, chunk, is_writable, ret, err);
	pthread_mutex_unlock(&mappings->lock);
	return r;
}

int mappings_reserve(struct mappings *mappings, uint32_t chunk,
		     struct error *err)
{
	struct mapping *mapping;
	int r = 0;

	pthread_mutex_lock(&mappings->lock);
	mapping = find(mappings, chunk);
	if (mapping && !mapping->is_reserved) {
		if (mmap(mapping->address, mapping->size, PROT_NONE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE |
				 MAP_FIXED,
			 -1, 0) == MAP_FAILED) {
			r = error_errno(err, -errno, "unmap chunk %u", chunk);
		} else {
			mapping->is_reserved = true;
			mapping->is_writable = false;
		}
	}
	pthread_mutex_unlock(&mappings->lock);
	return r;
}

void mappings_retire(struct mappings *mappings, const struct table *table,
		     mapping_is_held_fn *is_held, void *data)
{
	uint64_t n_retired;

	pthread_mutex_lock(&mappings->lock);
	/* Acquire: the chunk list is at least as new as the count. */
	n_retired = atomic_load_explicit(&table->header->chunks_retired,
					 memory_order_acquire);
	for (size_t i = mappings->n_retired == n_retired ? mappings->n : 0;
	     i < mappings->n;) {
		struct mapping *mapping = &mappings->list[i];

		if (atomic_load_explicit(&table->header->chunks[mapping->index],
					 memory_order_relaxed) ==
			    mapping->chunk ||
		    is_held(mapping->chunk, data)) {
			i++;
			continue;
		}
		(void)munmap(mapping->address, mapping->size);
		*mapping = mappings->list[--mappings->n];
	}
	mappings->n_retired = n_retired;
	pthread_mutex_unlock(&mappings->lock);
}
