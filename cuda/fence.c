/*
 * This file registers pages, and enqueues stream writes and waits.
 *
 * Pages are registered as portable, that is, for all contexts of the process.
 * The driver refuses to register them a second time, so they are registered
 * once for all devices. Each device then asks for its own address of them.
 */
#include "cuda/fence.h"
#include "cuda/shared.h"
#include "proto/error.h"
#include <errno.h>

/* --- registered pages ---------------------------------------------------- */

struct fence_pages {
	struct shared shared;
	/* the device whose context registered it */
	const struct device *device;
	void *pages;
	uint64_t size;
	bool is_readonly;
};

static int open_pages(struct shared *shared, struct error *err)
{
	struct fence_pages *pages = (struct fence_pages *)shared;
	unsigned int flags =
		CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
	CUresult result;
	int r;

	if (pages->is_readonly)
		flags |= CU_MEMHOSTREGISTER_READ_ONLY;
	r = context_enter(pages->device, err);
	if (r < 0)
		return r;
	result = cu.MemHostRegister(pages->pages, pages->size, flags);
	context_leave();
	return driver_error(err, result, "cannot register timelines %s on %s",
			    pages->is_readonly ? "read-only" : "writable",
			    pages->device->name);
}

static void close_pages(struct shared *shared)
{
	struct fence_pages *pages = (struct fence_pages *)shared;

	if (context_enter(pages->device, NULL) < 0)
		return;
	(void)cu.MemHostUnregister(pages->pages);
	context_leave();
}

static bool is_same_pages(const struct shared *a, const struct shared *b)
{
	return ((const struct fence_pages *)a)->pages ==
	       ((const struct fence_pages *)b)->pages;
}

static const struct shared_kind pages_kind = {
	.size = sizeof(struct fence_pages),
	.is_same = is_same_pages,
	.open = open_pages,
	.close = close_pages,
};
static struct shared_list pages_list = SHARED_LIST_INIT(&pages_kind);

static int take_pages(const struct fence_pages *like, struct fence_pages **ret,
		      struct error *err)
{
	struct fence_pages *pages;
	struct shared *shared;
	int r;

	r = shared_open(&pages_list, &like->shared, &shared, err);
	if (r < 0)
		return r;
	pages = (struct fence_pages *)shared;
	if (pages->size < like->size ||
	    (pages->is_readonly && !like->is_readonly)) {
		r = error_set(err, -EBUSY,
			      "the timelines at %p are registered already, "
			      "with %llu bytes %s; unmap them first",
			      like->pages, (unsigned long long)pages->size,
			      pages->is_readonly ? "read-only" : "writable");
		shared_close(&pages_list, shared);
		return r;
	}
	*ret = pages;
	return 0;
}

/* --- maps ---------------------------------------------------------------- */

static int check_device(const struct device *device, bool is_readonly,
			struct error *err)
{
	if (!device->has_wait_value)
		return error_set(err, -EOPNOTSUPP,
				 "%s has no 64-bit stream memory operations, "
				 "which timelines need",
				 device->name);
	if (is_readonly && !device->has_readonly_register)
		return error_set(
			err, -EOPNOTSUPP,
			"%s cannot register memory that is mapped read-only; a "
			"stream of this process can wait only for sessions of "
			"the same user, whose timelines are writable",
			device->name);
	return 0;
}

static int find_address(struct fence_map *map, struct error *err)
{
	CUresult result;
	int r;

	r = context_enter(map->device, err);
	if (r < 0)
		return r;
	result =
		cu.MemHostGetDevicePointer(&map->address, map->pages->pages, 0);
	context_leave();
	return driver_error(err, result, "cannot find the timelines on %s",
			    map->device->name);
}

int fence_map(const struct device *device, void *pages, uint64_t size,
	      bool is_readonly, struct fence_map *ret, struct error *err)
{
	const struct fence_pages like = {
		.device = device,
		.pages = pages,
		.size = size,
		.is_readonly = is_readonly,
	};
	struct fence_map map = {
		.device = device, .size = size, .is_readonly = is_readonly};
	int r;

	r = check_device(device, is_readonly, err);
	if (r == 0)
		r = take_pages(&like, &map.pages, err);
	if (r < 0)
		return r;
	r = find_address(&map, err);
	if (r < 0) {
		fence_unmap(&map);
		return r;
	}
	*ret = map;
	return 0;
}

void fence_unmap(struct fence_map *map)
{
	if (map->device)
		shared_close(&pages_list, &map->pages->shared);
	*map = FENCE_MAP_NULL;
}

/* --- streams ------------------------------------------------------------- */

/* Checks all arguments that come from outside, and enters the context. */
static int begin(const struct fence_map *map, CUstream stream, uint64_t offset,
		 uint64_t value, struct error *err)
{
	int r;

	if (offset % sizeof(uint64_t) != 0 || map->size < sizeof(uint64_t) ||
	    offset > map->size - sizeof(uint64_t))
		return error_set(err, -EINVAL,
				 "there is no counter at byte %llu of "
				 "timelines of %llu bytes",
				 (unsigned long long)offset,
				 (unsigned long long)map->size);
	if (value == 0 || value >= FENCE_POISON)
		return error_set(err, -EINVAL,
				 "%llu is not a value of a timeline: values "
				 "are 1 to 2^63 - 2",
				 (unsigned long long)value);
	r = context_check_stream(map->device, stream, err);
	if (r < 0)
		return r;
	return context_enter(map->device, err);
}

int fence_signal(const struct fence_map *map, CUstream stream, uint64_t offset,
		 uint64_t value, struct error *err)
{
	CUresult result;
	int r;

	if (map->is_readonly)
		return error_set(err, -EPERM,
				 "the timelines belong to another session, and "
				 "this process can only wait for them");
	r = begin(map, stream, offset, value, err);
	if (r < 0)
		return r;
	/* By default the driver orders the write after all earlier work of the
	 * stream. */
	result = cu.StreamWriteValue64(stream, map->address + offset, value,
				       CU_STREAM_WRITE_VALUE_DEFAULT);
	context_leave();
	return driver_error(
		err, result,
		"cannot make a stream on %s raise a timeline to %llu",
		map->device->name, (unsigned long long)value);
}

int fence_wait(const struct fence_map *map, CUstream stream, uint64_t offset,
	       uint64_t value, struct error *err)
{
	CUresult result;
	int r;

	if (value == 0)
		return 0;
	r = begin(map, stream, offset, value, err);
	if (r < 0)
		return r;
	result = cu.StreamWaitValue64(stream, map->address + offset, value,
				      CU_STREAM_WAIT_VALUE_GEQ);
	context_leave();
	return driver_error(
		err, result,
		"cannot make a stream on %s wait until a timeline is %llu",
		map->device->name, (unsigned long long)value);
}
