/*
 * These functions make tensors over device memory that the caller allocated
 * itself. Afterwards they are like all other tensors. Prefer memory of
 * fsdp_alloc_on() if you have the choice. fsdp.h includes this header and
 * describes the conventions.
 *
 * Memory of cudaMalloc() ends with the process (*legacy IPC*): then its tensors
 * lose their names, and a process that holds one gets -EOWNERDEAD from
 * fsdp_tensor_check() and must release it. Memory of virtual memory management
 * (ncclMemAlloc(), PyTorch's expandable segments) is *donated*: tensors that
 * were published stay. The mechanism is that of PyTorch's CudaIPCTypes.
 */
#pragma once
#include "fsdp.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Makes `n` tensors over memory at `pointers` (device addresses), one for each
 * spec. They are contiguous and all in one allocation; they may overlap, and
 * may be shared again. They are held and writable, as after fsdp_alloc(); the
 * caller must not free or reuse the memory before fsdp_unshare() returns 0. A
 * process that may read one of them gets the whole allocation, and with legacy
 * IPC can also write there.
 *
 * -EINVAL: this is not device memory, it is of several allocations, or this
 * process got it from fsdpd (then pass on that tensor). -EOPNOTSUPP: this is
 * managed memory, memory of a pool (cudaMallocAsync()), or virtual memory
 * without a POSIX handle. -EDQUOT, -ENOMEM: see fsdp_alloc().
 */
FSDP_API int fsdp_share(struct fsdp_client *client,
			const struct fsdp_spec *specs, void *const *pointers,
			size_t n, const struct fsdp_access *access,
			struct fsdp_tensor **ret);

/*
 * Ends the sharing: removes the tensor's name, and waits until the last user of
 * the tensor and its views has finished, on the host or a device, and all
 * tickets for it have ended. If it returns 0, nobody else uses the memory, and
 * the handle's hold is dropped; repeating the call returns 0 again. -ETIMEDOUT:
 * the memory is still used (the message names the process); the tensor is in
 * limbo, the handle keeps its hold, and the call may be repeated. -EINPROGRESS:
 * the broker went away during the request; the memory may still be used, and
 * the call must be repeated when it is back. -EPERM: another connection shared
 * it. -EINVAL: the handle is not held, and the tensor cannot be acquired.
 */
FSDP_API int fsdp_unshare(struct fsdp_tensor *tensor, int32_t timeout_ms);

#ifdef __cplusplus
}
#endif
