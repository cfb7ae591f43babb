/*
 * Legacy IPC: memory of cuMemAlloc() (cudaMalloc()) that another process has
 * already. What the broker makes is shared by descriptors (vmm.h) instead,
 * which need no living producer.
 *
 * The producer finds the allocation a pointer is in, and shares the whole of
 * it: that is the unit of the driver. The consumer opens each once, however
 * many tensors lie in it, and the last user closes it (PyTorch's allocator has
 * the same in its map of IPC memory, by handle bytes; since drivers may give
 * those again, here a chunk's number from the broker is the key). Who has
 * received memory hands it on by that number: ipc_find().
 *
 * While consumers use it the producer must live and must not free it; nothing
 * here can see to that (the broker tells it when it may).
 */
#pragma once
#include "cuda/device.h"
#include "cuda/handle.h"
#include "cuda/shared.h"

/* --- producer ------------------------------------------------------------ */

/* An allocation that this process shares. Its generation (the driver's number
 * of the buffer) tells it from every earlier and later one of the process. */
struct ipc_export {
	struct shared shared;
	const struct device *device;
	CUdeviceptr base;
	struct handle handle; /* to be sent, as it is; has size, generation */
};

/*
 * Share the allocation that `size` bytes at `pointer` are in, and give where
 * in it they begin. Shared once, however often this is called; each call needs
 * its ipc_unexport(). -EINVAL: no memory of `device`, or the bytes leave their
 * allocation. -EOPNOTSUPP: memory of another kind (VMM, pools, managed).
 */
int ipc_export(const struct device *device, CUdeviceptr pointer, uint64_t size,
	       struct ipc_export **ret, uint64_t *ret_offset,
	       struct error *err);

/* Nobody uses it any more, and nobody will open it. NULL is fine. */
void ipc_unexport(struct ipc_export *export);

/* --- consumer ------------------------------------------------------------ */

/* An allocation of a producer, opened in this process. */
struct ipc_import {
	struct shared shared;
	const struct device *device;
	uint64_t chunk; /* the broker's number; never given twice */
	struct handle handle;
	CUdeviceptr base;       /* of the allocation, in this process */
	struct ipc_export *own; /* the producer is this process */
};

/*
 * Open the allocation of `chunk` on `device`, or count one more user of it. In
 * the producer's own process, where drivers refuse that, its own address is
 * given. Different handles are different chunks, whatever their number.
 * -EINVAL: the driver refuses the handle, or the allocation is smaller than it
 * says; -EEXIST: something else in this process has it open; -ESTALE: one's
 * own, and not shared any more. On failure nothing is left.
 */
int ipc_open(const struct device *device, uint64_t chunk,
	     const struct handle *handle, struct ipc_import **ret,
	     struct error *err);

/* Work on the device that uses it must have ended, if this may be its last
 * user. NULL is fine. */
void ipc_close(struct ipc_import *import);

/* Are these bytes of memory that was received? Gives of which chunk, and
 * where in it. Not for memory of this process. */
bool ipc_find(CUdeviceptr pointer, uint64_t size, uint64_t *ret_chunk,
	      uint64_t *ret_offset);
