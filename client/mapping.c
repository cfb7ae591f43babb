/*
 * The list of mapped chunks. There are few (chunks are large), so it is an
 * array that is searched from the start.
 */
#include "client/mapping.h"
#include "cuda/context.h"
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

void mappings_synchronize(const struct mappings *mappings)
{
	const struct device *last = NULL;

	for (size_t i = 0; i < mappings->n; i++) {
		const struct device *device = mappings->list[i].device;

		if (device && device != last)
			(void)context_synchronize(device, NULL);
		last = device ? device : last;
	}
}

static void unmap(struct mapping *mapping)
{
	if (mapping->device)
		vmm_unmap(&mapping->vmm);
	else
		(void)munmap(mapping->address, mapping->size);
}

void mappings_deinit(struct mappings *mappings, bool is_forked)
{
	for (size_t i = 0; i < mappings->n; i++) {
		struct mapping *mapping = &mappings->list[i];

		if (!is_forked || (!mapping->is_writable && !mapping->device))
			unmap(mapping);
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

static int unprotect(struct mapping *mapping, struct error *err)
{
	int r;

	if (mapping->device)
		return vmm_make_writable(&mapping->vmm, err);
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
	return 0;
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
	r = unprotect(mapping, err);
	mapping->is_writable = r == 0;
	return r;
}

static int reserve_room(struct mappings *mappings, struct error *err)
{
	size_t capacity = mappings->capacity ? 2 * mappings->capacity : 8;
	struct mapping *list;

	if (mappings->n < mappings->capacity)
		return 0;
	list = reallocarray(mappings->list, capacity, sizeof(*list));
	if (!list)
		return error_set(err, -ENOMEM, "no memory for a mapping");
	mappings->list = list;
	mappings->capacity = capacity;
	return 0;
}

static int map_on_device(struct mapping *mapping, int fd, struct error *err)
{
	int r = vmm_map(mapping->device, fd, mapping->size, false,
			&mapping->vmm, err);

	if (r == 0)
		mapping->address = (uint8_t *)(uintptr_t)mapping->vmm.address;
	return r;
}

static int map_on_host(struct mapping *mapping, int fd, struct error *err)
{
	void *address;
	int r;

	r = memfd_check(fd, mapping->size, NULL, err);
	if (r == 0)
		r = memfd_map(fd, mapping->size, false, &address, err);
	if (r == 0)
		mapping->address = address;
	return r;
}

static int map_new(struct mappings *mappings, const struct chunk_ref *chunk,
		   const struct device *device, int fd, struct error *err)
{
	struct mapping mapping = {
		.chunk = chunk->chunk,
		.index = chunk->index,
		.size = chunk->size,
		.device = device,
		.may_write = chunk->is_writable,
	};
	int r = reserve_room(mappings, err);

	if (r == 0)
		r = device ? map_on_device(&mapping, fd, err)
			   : map_on_host(&mapping, fd, err);
	if (r == 0)
		mappings->list[mappings->n++] = mapping;
	return r;
}

static int replace_on_host(const struct mapping *mapping, int fd,
			   struct error *err)
{
	int r = memfd_check(fd, mapping->size, NULL, err);

	if (r < 0)
		return r;
	if (mmap(mapping->address, mapping->size, PROT_READ,
		 MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
		return error_errno(err, -errno, "map chunk %u again",
				   mapping->chunk);
	(void)madvise(mapping->address, mapping->size, MADV_HUGEPAGE);
	(void)madvise(mapping->address, mapping->size, MADV_DONTDUMP);
	return 0;
}

/* The fd of a reserved chunk came again, perhaps with other rights. */
static int map_again(struct mapping *mapping, const struct chunk_ref *chunk,
		     const struct device *device, int fd, struct error *err)
{
	int r;

	if (mapping->size != chunk->size || mapping->device != device)
		return error_set(err, -EPROTO,
				 "chunk %u changed its size or its device",
				 chunk->chunk);
	r = device ? vmm_replace(&mapping->vmm, fd, false, err)
		   : replace_on_host(mapping, fd, err);
	if (r < 0)
		return r;
	mapping->may_write = chunk->is_writable;
	mapping->is_writable = false;
	mapping->is_reserved = false;
	/* Writable before, writable again: its bundle is still staged. */
	return chunk->is_writable ? make_writable(mapping, err) : 0;
}

static int add(struct mappings *mappings, const struct chunk_ref *chunk,
	       const struct device *device, int fd, struct error *err)
{
	struct mapping *mapping = find(mappings, chunk->chunk);

	if (mapping && !mapping->is_reserved)
		return 0;
	if (chunk->index >= TABLE_CHUNKS)
		return error_set(err, -EPROTO,
				 "chunk %u has no place in the chunk list",
				 chunk->chunk);
	return mapping ? map_again(mapping, chunk, device, fd, err)
		       : map_new(mappings, chunk, device, fd, err);
}

int mappings_add(struct mappings *mappings, const struct chunk_ref *chunk,
		 int fd, struct error *err)
{
	const struct device *device = NULL;
	int r = 0;

	/* Before the lock: the first one loads the driver. */
	if (!device_uuid_is_host(&chunk->device))
		r = device_find(&chunk->device, &device, err);
	pthread_mutex_lock(&mappings->lock);
	if (r == 0)
		r = add(mappings, chunk, device, fd, err);
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
	*ret = (struct span){chunk, mapping->address, mapping->size,
			     mapping->device};
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

static int clear(struct mapping *mapping, struct error *err)
{
	if (mmap(mapping->address, mapping->size, PROT_NONE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
		 0) == MAP_FAILED)
		return error_errno(err, -errno, "unmap chunk %u",
				   mapping->chunk);
	return 0;
}

int mappings_reserve(struct mappings *mappings, uint32_t chunk,
		     struct error *err)
{
	struct mapping *mapping;
	int r = 0;

	pthread_mutex_lock(&mappings->lock);
	mapping = find(mappings, chunk);
	if (mapping && !mapping->is_reserved) {
		if (!mapping->device)
			r = clear(mapping, err);
		mapping->is_reserved = r == 0;
		mapping->is_writable = r < 0 && mapping->is_writable;
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
		unmap(mapping);
		*mapping = mappings->list[--mappings->n];
	}
	mappings->n_retired = n_retired;
	pthread_mutex_unlock(&mappings->lock);
}
