/*
 * Legacy IPC shares memory of cuMemAlloc() (cudaMalloc()) that a process
 * already has. Memory that the broker makes is shared by descriptors instead
 * (vmm.h), and does not depend on a living producer.
 *
 * The producer finds the allocation that contains a pointer (pointer.h) and
 * shares it as a whole, since the driver only shares whole allocations. A
 * consumer opens each
 * allocation once, for any number of tensors in it, and its last user closes
 * it. (PyTorch's allocator does the same, and identifies memory by the bytes of
 * the handle; drivers may use those again, so the key here is the broker's
 * chunk number.) A process that received memory passes it on by that number:
 * ipc_find().
 *
 * The producer must live, and must not free the memory, while consumers use it.
 * This code cannot enforce that; the broker tells the producer when it may free
 * the memory. The driver does not say which processes have died: on an H200 it
 * opened the handle of a dead producer while other memory of that producer was
 * open. Only the broker knows of deaths.
 */
#pragma once
#include "cuda/device.h"
#include "cuda/handle.h"
#include "cuda/pointer.h"
#include "cuda/shared.h"

/* --- producer ------------------------------------------------------------ */

/* An allocation that this process shares. Its generation, the driver's number
 * of the buffer, differs from that of all other allocations of the process. */
struct ipc_export {
	struct shared shared;
	const struct device *device;
	CUdeviceptr base;
	/* sent to consumers unchanged; has size and generation */
	struct handle handle;
};

/* Shares an allocation that is legacy memory. It is shared once, however often
 * this is called, but each call needs its own ipc_unexport(). */
int ipc_export(const struct pointer *pointer, struct ipc_export **ret,
	       struct error *err);

/* Ends the sharing. No process may use the memory any more, or open it later.
 * `export` may be NULL. */
void ipc_unexport(struct ipc_export *export);

/* --- consumer ------------------------------------------------------------ */

/* An allocation of a producer that is open in this process. */
struct ipc_import {
	struct shared shared;
	const struct device *device;
	uint64_t chunk; /* the broker's number, which is never used twice */
	struct handle handle;
	CUdeviceptr base;       /* address of the allocation in this process */
	struct ipc_export *own; /* set if this process is the producer */
};

/*
 * Opens the allocation of `chunk` on `device`, or adds a user to it. In the
 * producer's own process, where drivers refuse to open it, the original address
 * is used. Different handles are different chunks, even if their numbers are
 * equal. Returns -EINVAL if the driver refuses the handle, or if the allocation
 * is smaller than the handle says; -EEXIST if other code of this process has it
 * open; -ESTALE if it is of this process and is not shared any more. After a
 * failure nothing stays open.
 */
int ipc_open(const struct device *device, uint64_t chunk,
	     const struct handle *handle, struct ipc_import **ret,
	     struct error *err);

/* Drops a user. If it may be the last one, device work that uses the memory
 * must be complete. `import` may be NULL. */
void ipc_close(struct ipc_import *import);

/* Looks for the bytes in memory that this process has received, and returns the
 * chunk and the offset in it. Memory of the process itself is not found. */
bool ipc_find(CUdeviceptr pointer, uint64_t size, uint64_t *ret_chunk,
	      uint64_t *ret_offset);
