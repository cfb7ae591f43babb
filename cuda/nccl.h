/*
 * NCCL, found at run time.
 *
 * All NCCL calls of fsdp-worker and libfsdp go through one table, `nccl`;
 * nothing is linked. The library is loaded once per process, from $FSDP_LIBNCCL
 * (unless the process is set-uid) or else libnccl.so.2. A node without NCCL has
 * device memory but no collectives on it. The broker never loads it.
 */
#pragma once
#include "cuda/nccl_api.h"
#include "cuda/nccl_symbols.h"
#include <stdbool.h>

struct error;

#define NCCL_VERSION_MIN 21900 /* ncclCommRegister() */
#define NCCL_VERSION_END 30000 /* another major version is another ABI */

struct nccl {
	/* One member per symbol, named without "nccl": nccl.AllGather(...). */
#define NCCL_MEMBER(name) __typeof__(nccl##name) *name;
	NCCL_SYMBOLS(NCCL_MEMBER)
#undef NCCL_MEMBER
};

extern struct nccl nccl;

/*
 * Load it, after the driver, once; later calls return the first result.
 * Thread-safe. Errors of driver_load(); -ENODEV: there is no NCCL; -ENOSYS: its
 * version is wrong (the sentence has the version found and those that work), or
 * it lacks a symbol; -EINVAL: one of driver and NCCL is a fake and the other is
 * not.
 */
int nccl_load(struct error *err);

/*
 * For a process that is all ours: have NCCL connect ranks when they meet,
 * unless the environment says otherwise. By default it does so in their first
 * collectives, and then these calls wait for the other ranks. Call it before
 * nccl_load(), while there is one thread, since it changes the environment.
 */
void nccl_connect_early(void);

/*
 * Turn a result of NCCL into 0 or -errno and a sentence: the attempt
 * (`format`), NCCL's own words (name and last error), and the remedy where one
 * is known. InvalidArgument and InvalidUsage give -EINVAL, RemoteError
 * -ECONNABORTED, InProgress -EAGAIN, all others -EIO.
 */
int nccl_error(struct error *err, ncclResult_t result, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
