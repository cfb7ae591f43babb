/*
 * Legacy IPC: sharing memory of cuMemAlloc() (cudaMalloc()) that a process
 * already has. Memory that the broker makes is shared by descriptors instead
 * (vmm.h), which need no living producer.
 *
 * The producer finds the allocation that contains a pointer and shares it as a
 * whole, since the allocation is the driver's unit. A consumer opens each
 * allocation once, for any number of tensors in it, and its last user closes
 * it. (PyTorch's allocator does the same and identifies memory by the bytes of
 * the handle; drivers may use those again, so the key here is the broker's
 * chunk number.) A process that received memory passes it on by that number:
 * ipc_find().
 *
 * The producer must live, and must not free the memory, while consumers use it.
 * Nothing here can enforce that; the broker tells the producer when it may free
 * the memory. The driver does not say which processes have died: on an H200 it
 * opened the handle of a dead producer while other memory of that producer was
 * open. Only the broker knows of deaths.
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
 * Share the allocation that contains the `size` bytes at `pointer`, and give
 * their offset in it. An allocation is shared once, however often this is
 * called; each call needs its ipc_unexport(). -EINVAL: the bytes are not memory
 * of `device`, or extend beyond their allocation. -EOPNOTSUPP: memory of
 * another kind (VMM, pools, managed).
 */
int ipc_export(const struct device *device, CUdeviceptr pointer, uint64_t size,
	       struct ipc_export **ret, uint64_t *ret_offset,
	       struct error *err);

/* No process uses it or will open it any more. NULL is allowed. */
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
 * Open the allocation of `chunk` on `device`, or add one user to it. In the
 * producer's own process, where drivers refuse to open it, the original address
 * is given. Different handles are different chunks, whatever their number.
 * -EINVAL: the driver refuses the handle, or the allocation is smaller than the
 * handle says; -EEXIST: another part of this process has it open; -ESTALE: it
 * belongs to this process and is not shared any more. After a failure nothing
 * is open.
 */
int ipc_open(const struct device *device, uint64_t chunk,
	     const struct handle *handle, struct ipc_import **ret,
	     struct error *err);

/* If this may be the last user, device work that uses the memory must have
 * finished. NULL is allowed. */
void ipc_close(struct ipc_import *import);

/* Do these bytes lie in memory that was received? Gives the chunk and the
 * offset in it. Memory of this process itself is not found. */
bool ipc_find(CUdeviceptr pointer, uint64_t size, uint64_t *ret_chunk,
	      uint64_t *ret_offset);
