/*
 * Timelines order streams of different processes.
 *
 * A timeline is a 64-bit counter in shared memory (shm/timeline.h; each session
 * has a file of them). One stream of one process raises it by writes after its
 * work, and streams of other processes wait for it. Values grow from 1 and stay
 * below FENCE_POISON. This value wakes all streams that wait for a process that
 * has died. (The comparison is signed and cyclic, so UINT64_MAX would not.)
 *
 * A write is enqueued before the broker is told about it ("publish after
 * enqueue"), so a wait is only ever for work that was submitted. It also ends
 * if streams share hardware queues (CUDA_DEVICE_MAX_CONNECTIONS, 8 by default),
 * where a waiting stream delays work that was submitted later: everything that
 * the work depends on was submitted before it. Collectives are different: a
 * collective ends when all ranks have submitted theirs. That may be later, and
 * then in the queue of a stream that waits for work after the collective. So a
 * program that uses both stream waits and collectives on a device keeps their
 * streams in different queues, or waits on the host (docs/device.md).
 *
 * While a wait is pending, calls that wait for the device block (cuMemAlloc,
 * cuMemFree, any call under CUDA_LAUNCH_BLOCKING=1). So the caller enqueues the
 * wait last, after all allocations and opens.
 */
#pragma once
#include "cuda/context.h"
#include <stdint.h>

#define FENCE_POISON INT64_MAX

/*
 * The counters of a file, as one device accesses them. If `is_readonly`, they
 * can only be waited for.
 */
struct fence_map {
	const struct device *device; /* NULL if nothing is mapped */
	struct fence_pages *pages;
	CUdeviceptr address;
	uint64_t size;
	bool is_readonly;
};

#define FENCE_MAP_NULL ((struct fence_map){.device = NULL})

/*
 * Maps `size` bytes of host memory at `pages` for the device. They are whole
 * pages, borrowed, and must stay mapped in the process until fence_unmap(). The
 * process registers the same pages only once for all devices.
 *
 * Returns -EOPNOTSUPP if the device has no 64-bit stream memory operations (the
 * caller uses event_ipc.h), or if the driver cannot register read-only pages
 * (the caller asks for a writable file); -EBUSY if the pages are registered
 * read-only or with a smaller size; -EEXIST if other code of the process has
 * registered them.
 */
int fence_map(const struct device *device, void *pages, uint64_t size,
	      bool is_readonly, struct fence_map *ret, struct error *err);
/* No stream may have a pending write to it or a pending wait for it. */
void fence_unmap(struct fence_map *map);

/*
 * Makes the stream write `value` to the counter at byte `offset` when all its
 * earlier work is complete. The stream belongs to the map's device and is not
 * NULL. A counter must never fall, so the caller holds a lock from the choice
 * of the value until this returns. Returns -EINVAL if the stream belongs to
 * another context, or if the counter or the value is invalid, and -EPERM if the
 * map is read-only.
 */
int fence_signal(const struct fence_map *map, CUstream stream, uint64_t offset,
		 uint64_t value, struct error *err);
/* Makes the stream wait until the counter is at least `value`; a value of 0
 * needs no wait. `value` may come from another process. Returns -EINVAL like
 * fence_signal(). */
int fence_wait(const struct fence_map *map, CUstream stream, uint64_t offset,
	       uint64_t value, struct error *err);
