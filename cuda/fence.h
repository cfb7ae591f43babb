/*
 * Ordering between streams of different processes, by timelines.
 *
 * A timeline is a 64-bit counter in shared memory (shm/timeline.h, one file per
 * session). One stream of one process raises it by writes after its work, and
 * streams of other processes wait for it. Values grow from 1 and stay below
 * FENCE_POISON, which wakes every waiter of a dead process (the comparison is
 * signed and cyclic, so UINT64_MAX would not).
 *
 * A write is the last thing that is enqueued before the broker is told of it
 * ("publish after enqueue"), so a wait only ever concerns submitted work. It
 * also ends if streams share hardware queues (CUDA_DEVICE_MAX_CONNECTIONS, 8 by
 * default), where a waiting stream delays work that was submitted later:
 * everything that the work depends on was submitted before it. Collectives are
 * different: one ends when all ranks have submitted theirs, which may be later,
 * and then possibly in the queue of a stream that waits for work after the
 * collective. So a program that uses both stream waits and collectives on a
 * device keeps their streams in different queues, or waits on the host
 * (docs/device.md).
 *
 * While a wait is pending, calls that wait for the device (cuMemAlloc,
 * cuMemFree, anything under CUDA_LAUNCH_BLOCKING=1) block: the caller enqueues
 * the wait last, after all allocations and opens.
 */
#pragma once
#include "cuda/context.h"
#include <stdint.h>

#define FENCE_POISON INT64_MAX

/*
 * Counters of a file, as one device sees them. `is_readonly`: to wait only.
 */
struct fence_map {
	const struct device *device; /* NULL: none */
	struct fence_pages *pages;
	CUdeviceptr address;
	uint64_t size;
	bool is_readonly;
};

#define FENCE_MAP_NULL ((struct fence_map){.device = NULL})

/*
 * Let the device reach `size` bytes of host memory at `pages` (whole pages,
 * borrowed), that stay mapped until fence_unmap(). The process registers the
 * same pages once, however many devices map them.
 *
 * -EOPNOTSUPP: the device has no 64-bit stream memory operations (use
 * event_ipc.h), or, for `is_readonly`, the driver cannot register read-only
 * pages (ask for a writable file); -EBUSY: the pages are registered read-only
 * or shorter; -EEXIST: somebody else registered them.
 */
int fence_map(const struct device *device, void *pages, uint64_t size,
	      bool is_readonly, struct fence_map *ret, struct error *err);
/* No stream has a write or wait pending on it. */
void fence_unmap(struct fence_map *map);

/*
 * Have the stream (of the map's device, not NULL) write `value` to the counter
 * at byte `offset` when all it has been given before is done. A counter must
 * never fall: the caller holds a lock from choosing the value until this
 * returns. -EINVAL: a stream of another context, or no such counter or value;
 * -EPERM: the map is for waiting only.
 */
int fence_signal(const struct fence_map *map, CUstream stream, uint64_t offset,
		 uint64_t value, struct error *err);
/* Have the stream wait until the counter is at least `value`. Of 0 there is
 * nothing to wait for. -EINVAL: as above; `value` may be anybody's. */
int fence_wait(const struct fence_map *map, CUstream stream, uint64_t offset,
	       uint64_t value, struct error *err);
