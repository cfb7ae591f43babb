/*
 * The list of mapped chunks. There are few chunks, because they are large, so
 * the list is an array that is searched linearly.
 */
#include "client/mapping.h"
#include "client/hidden.h"
#include "cuda/context.h"
#include "proto/error.h"
#include "shm/memfd.h"
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* The maximum number of chunks that are removed from the list before they are
 * unmapped. */
#define RETIRE_AT_ONCE 16

void mappings_init(struct mappings *mappings)
{
	*mappings = (struct mappings){.list = NULL};
	pthread_mutex_init(&mappings->lock, NULL);
	unmapper_init(&mappings->unmapper);
}

int mappings_synchronize(const struct mappings *mappings, int32_t timeout_ms,
			 struct error *err)
{
	const struct device *last = NULL;
	int r = 0;

	for (size_t i = 0; i < mappings->n && r == 0; i++) {
		const struct device *device = mappings->list[i].device;

		if (device && device != last)
			r = context_synchronize(device, timeout_ms, err);
		last = device ? device : last;
	}
	return r;
}

static void unmap(struct mapping *mapping)
{
	if (mapping->is_own) {
		ipc_unexport(mapping->export);
		vmm_unexport(mapping->donation);
	} else if (mapping->import) {
		ipc_close(mapping->import);
	} else if (mapping->device) {
		vmm_unmap(&mapping->vmm);
	} else {
		hidden_forget(mapping->address);
		(void)munmap(mapping->address, mapping->size);
	}
}

void mappings_deinit(struct mappings *mappings, bool is_forked)
{
	for (size_t i = 0; i < mappings->n; i++) {
		struct mapping *mapping = &mappings->list[i];

		if (!is_forked || (!mapping->is_writable && !mapping->device))
			unmap(mapping);
	}
	if (!is_forked)
		unmapper_deinit(&mappings->unmapper);
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
	/* The memory must not be inherited: a forked child could write what its
	 * parent still writes. */
	int r = hidden_add(mapping->address, mapping->size);

	if (r < 0)
		return error_errno(err, r,
				   "cannot hide chunk %u from forked processes",
				   mapping->chunk);
	if (mprotect(mapping->address, mapping->size, PROT_READ | PROT_WRITE) <
	    0) {
		r = -errno;
		hidden_forget(mapping->address);
		(void)madvise(mapping->address, mapping->size, MADV_DOFORK);
		return error_errno(err, r, "cannot make chunk %u writable",
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
		return error_set(err, -EACCES,
				 "cannot write in chunk %u: fsdpd gave it "
				 "read-only, as the mode of its owner or a "
				 "committed bundle says",
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
		return error_nomem(err, "a mapping");
	mappings->list = list;
	mappings->capacity = capacity;
	return 0;
}

/*
 * Map a chunk with all rights that it will ever have: to change them, the
 * driver removes the pages for a moment, and kernels that read them would
 * fault.
 */
static int map_on_device(struct mapping *mapping, int fd, struct error *err)
{
	int r = vmm_map(mapping->device, fd, mapping->size, mapping->may_write,
			&mapping->vmm, err);

	if (r < 0)
		return r;
	mapping->address = (uint8_t *)(uintptr_t)mapping->vmm.address;
	mapping->is_writable = mapping->may_write;
	return 0;
}

static int open_handle(struct mapping *mapping, const struct chunk_ref *chunk,
		       struct error *err)
{
	struct handle handle;
	int r = handle_decode(chunk->handle, sizeof(chunk->handle),
			      HANDLE_MEMORY, &handle, err);

	if (r == 0 && handle.size != chunk->size)
		r = error_set(err, -EPROTO,
			      "fsdpd says that chunk %u has %llu bytes, but "
			      "its handle says %llu",
			      chunk->chunk, (unsigned long long)chunk->size,
			      (unsigned long long)handle.size);
	if (r == 0)
		r = ipc_open(mapping->device, chunk->chunk, &handle,
			     &mapping->import, err);
	if (r < 0)
		return r;
	mapping->address = (uint8_t *)(uintptr_t)mapping->import->base;
	mapping->is_writable = mapping->may_write;
	return 0;
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

static int map_new(struct mapping *mapping, const struct chunk_ref *chunk,
		   int fd, struct error *err)
{
	if (chunk->has_handle)
		return open_handle(mapping, chunk, err);
	return mapping->device ? map_on_device(mapping, fd, err)
			       : map_on_host(mapping, fd, err);
}

static int replace_on_host(const struct mapping *mapping, int fd,
			   struct error *err)
{
	int r = memfd_check(fd, mapping->size, NULL, err);

	if (r < 0)
		return r;
	if (mmap(mapping->address, mapping->size, PROT_READ,
		 MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
		return error_errno(err, -errno, "cannot map chunk %u again",
				   mapping->chunk);
	(void)madvise(mapping->address, mapping->size, MADV_HUGEPAGE);
	(void)madvise(mapping->address, mapping->size, MADV_DONTDUMP);
	return 0;
}

/* Map a reserved chunk again, with the rights of its new descriptor. */
static int map_again(struct mapping *mapping, const struct chunk_ref *chunk,
		     int fd, struct error *err)
{
	int r;

	if (mapping->size != chunk->size ||
	    !device_uuid_is_host(&chunk->device))
		return error_set(err, -EPROTO,
				 "chunk %u changed its size or its device",
				 chunk->chunk);
	r = replace_on_host(mapping, fd, err);
	if (r < 0)
		return r;
	mapping->may_write = chunk->is_writable;
	mapping->is_writable = false;
	mapping->is_reserved = false;
	/* If the bundle is still staged, the chunk becomes writable again. */
	return chunk->is_writable ? make_writable(mapping, err) : 0;
}

static int check_index(const struct chunk_ref *chunk, struct error *err)
{
	if (chunk->index < TABLE_CHUNKS)
		return 0;
	return error_set(
		err, -EPROTO,
		"the number of chunk %u is too large for the chunk list",
		chunk->chunk);
}

/* Store whether the chunk is in the list. If it was reserved, map it again. */
static int look(struct mappings *mappings, const struct chunk_ref *chunk,
		int fd, bool *ret, struct error *err)
{
	struct mapping *mapping;
	int r = 0;

	pthread_mutex_lock(&mappings->lock);
	mapping = find(mappings, chunk->chunk);
	*ret = mapping != NULL;
	if (mapping && mapping->is_reserved)
		r = map_again(mapping, chunk, fd, err);
	pthread_mutex_unlock(&mappings->lock);
	return r;
}

/* Add `new` to the list. It is unmapped on failure, and if another thread has
 * added the chunk in the meantime. */
static int insert(struct mappings *mappings, struct mapping *new,
		  struct error *err)
{
	bool is_known;
	int r = 0;

	pthread_mutex_lock(&mappings->lock);
	is_known = find(mappings, new->chunk) != NULL;
	if (!is_known)
		r = reserve_room(mappings, err);
	if (!is_known && r == 0)
		mappings->list[mappings->n++] = *new;
	pthread_mutex_unlock(&mappings->lock);
	if (is_known || r < 0)
		unmap(new);
	return r;
}

/* The lock is not held during calls of the driver: the first one loads the
 * driver, and each may wait for any work that this process has given its
 * devices. */
static int add(struct mappings *mappings, const struct chunk_ref *chunk, int fd,
	       struct error *err)
{
	struct mapping mapping = {
		.chunk = chunk->chunk,
		.index = chunk->index,
		.size = chunk->size,
		.may_write = chunk->is_writable,
	};
	bool is_mapped;
	int r = check_index(chunk, err);

	if (r == 0 && !device_uuid_is_host(&chunk->device))
		r = device_find(&chunk->device, &mapping.device, err);
	if (r == 0)
		r = look(mappings, chunk, fd, &is_mapped, err);
	if (r < 0 || is_mapped)
		return r;
	r = map_new(&mapping, chunk, fd, err);
	return r == 0 ? insert(mappings, &mapping, err) : r;
}

int mappings_add(struct mappings *mappings, const struct chunk_ref *chunk,
		 int fd, struct error *err)
{
	int r = add(mappings, chunk, fd, err);

	if (fd >= 0)
		(void)close(fd);
	return r;
}

int mappings_add_own(struct mappings *mappings, const struct chunk_ref *chunk,
		     const struct own_memory *own, struct error *err)
{
	struct mapping mapping = {
		.chunk = chunk->chunk,
		.index = chunk->index,
		.size = chunk->size,
		.address = own->address,
		.device = own->device,
		.export = own->export,
		.donation = own->donation,
		.is_own = true,
		.may_write = true,
		.is_writable = true,
	};
	int r = check_index(chunk, err);

	if (r == 0)
		return insert(mappings, &mapping, err);
	unmap(&mapping);
	return r;
}

void mappings_end_own(struct mappings *mappings, uint32_t chunk)
{
	struct vmm_export *donation = NULL;
	struct mapping *mapping;

	pthread_mutex_lock(&mappings->lock);
	mapping = find(mappings, chunk);
	if (mapping) {
		donation = mapping->donation;
		mapping->donation = NULL;
	}
	pthread_mutex_unlock(&mappings->lock);
	vmm_unexport(donation);
}

static struct range range_of(const struct mapping *mapping)
{
	return (struct range){
		.chunk = mapping->chunk,
		.address = mapping->address,
		.size = mapping->size,
		.device = mapping->device,
		.is_own = mapping->is_own,
		.is_legacy = mapping->import || mapping->export,
	};
}

static int find_range(struct mappings *mappings, uint32_t chunk,
		      bool is_writable, struct range *ret, struct error *err)
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
	*ret = range_of(mapping);
	return MAPPING_OK;
}

int mappings_find(struct mappings *mappings, uint32_t chunk, bool is_writable,
		  struct range *ret, struct error *err)
{
	int r;

	pthread_mutex_lock(&mappings->lock);
	r = find_range(mappings, chunk, is_writable, ret, err);
	pthread_mutex_unlock(&mappings->lock);
	return r;
}

bool mappings_find_address(struct mappings *mappings, const void *address,
			   struct range *ret)
{
	uintptr_t at = (uintptr_t)address;
	bool is_found = false;

	pthread_mutex_lock(&mappings->lock);
	for (size_t i = 0; i < mappings->n && !is_found; i++) {
		const struct mapping *mapping = &mappings->list[i];

		is_found = mapping->device &&
			   at - (uintptr_t)mapping->address < mapping->size;
		if (is_found)
			*ret = range_of(mapping);
	}
	pthread_mutex_unlock(&mappings->lock);
	return is_found;
}

static int clear(struct mapping *mapping, struct error *err)
{
	if (mmap(mapping->address, mapping->size, PROT_NONE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
		 0) == MAP_FAILED)
		return error_errno(err, -errno, "cannot unmap chunk %u",
				   mapping->chunk);
	hidden_forget(mapping->address);
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
		r = clear(mapping, err);
		mapping->is_reserved = r == 0;
		mapping->is_writable = r < 0 && mapping->is_writable;
	}
	pthread_mutex_unlock(&mappings->lock);
	return r;
}

int mappings_keep(struct mappings *mappings, uint32_t chunk, struct range *ret,
		  struct error *err)
{
	int r;

	pthread_mutex_lock(&mappings->lock);
	r = find_range(mappings, chunk, false, ret, err);
	if (r == MAPPING_OK)
		find(mappings, chunk)->n_keepers++;
	pthread_mutex_unlock(&mappings->lock);
	if (r == MAPPING_MISSING)
		return error_set(err, -ENOENT, "chunk %u is not mapped", chunk);
	return r;
}

void mappings_end_keep(struct mappings *mappings, uint32_t chunk)
{
	pthread_mutex_lock(&mappings->lock);
	/* mappings_retire() may have skipped this chunk, so the next one must
	 * look. */
	if (--find(mappings, chunk)->n_keepers == 0)
		mappings->n_retired = UINT64_MAX;
	pthread_mutex_unlock(&mappings->lock);
}

static bool is_listed(const struct mapping *mapping, const struct table *table)
{
	return atomic_load_explicit(&table->header->chunks[mapping->index],
				    memory_order_relaxed) == mapping->chunk;
}

bool mappings_is_gone(struct mappings *mappings, uint32_t chunk,
		      const struct table *table)
{
	const struct mapping *mapping;
	bool is_gone;

	pthread_mutex_lock(&mappings->lock);
	mapping = find(mappings, chunk);
	is_gone = !mapping || !is_listed(mapping, table);
	pthread_mutex_unlock(&mappings->lock);
	return is_gone;
}

/* Remove at most `max` retired chunks from the list. The lock is held. */
static size_t take_gone(struct mappings *mappings, const struct table *table,
			mapping_is_held_fn *is_held, void *data, size_t max,
			struct mapping *ret)
{
	size_t n = 0, i = 0;

	while (i < mappings->n && n < max) {
		struct mapping *mapping = &mappings->list[i];

		if (is_listed(mapping, table) || mapping->n_keepers ||
		    is_held(mapping->chunk, data)) {
			i++;
			continue;
		}
		ret[n++] = *mapping;
		*mapping = mappings->list[--mappings->n];
	}
	return n;
}

static void unmap_retired(struct mappings *mappings, struct mapping *mapping)
{
	if (mapping->is_own || mapping->import || mapping->device) {
		unmap(mapping);
		return;
	}
	hidden_forget(mapping->address);
	unmapper_add(&mappings->unmapper, mapping->address, mapping->size);
}

/* Unmap without the lock, since a driver may wait for work here. */
void mappings_retire(struct mappings *mappings, const struct table *table,
		     mapping_is_held_fn *is_held, void *data)
{
	struct mapping gone[RETIRE_AT_ONCE];
	uint64_t n_retired;
	size_t n;

	do {
		n = 0;
		pthread_mutex_lock(&mappings->lock);
		/* Acquire: the chunk list is at least as new as the count. */
		n_retired = atomic_load_explicit(&table->header->chunks_retired,
						 memory_order_acquire);
		if (mappings->n_retired != n_retired)
			n = take_gone(mappings, table, is_held, data,
				      RETIRE_AT_ONCE, gone);
		if (n < RETIRE_AT_ONCE)
			mappings->n_retired = n_retired;
		pthread_mutex_unlock(&mappings->lock);
		for (size_t i = 0; i < n; i++)
			unmap_retired(mappings, &gone[i]);
	} while (n == RETIRE_AT_ONCE);
}
