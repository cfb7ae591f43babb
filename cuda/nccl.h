/*
 * NCCL is found at run time.
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

#define NCCL_VERSION_MIN 21900 /* has ncclCommRegister() */
#define NCCL_VERSION_END 30000 /* a new major version has another ABI */

struct nccl {
	/* One member per symbol, named without "nccl": nccl.AllGather(...). */
#define NCCL_MEMBER(name) __typeof__(nccl##name) *name;
	NCCL_SYMBOLS(NCCL_MEMBER)
#undef NCCL_MEMBER
};

extern struct nccl nccl;

/*
 * Loads NCCL once, after the driver; later calls return the first result. It is
 * thread-safe. Fails like driver_load(), and with -ENODEV if there is no NCCL;
 * -ENOSYS if its version is wrong (the sentence has the version found and those
 * that work), or if it lacks a symbol; -EINVAL if the driver is a fake and NCCL
 * is not, or the reverse.
 */
int nccl_load(struct error *err);

/*
 * For programs of our own: makes NCCL connect ranks when they meet, unless the
 * environment says otherwise. By default it connects them in their first
 * collectives, and then these calls wait for the other ranks. It must be called
 * before nccl_load(), while the process has one thread, since it changes the
 * environment.
 */
void nccl_connect_early(void);

/*
 * Turns a result of NCCL into 0, or into a negative errno with a sentence: the
 * attempt (`format`), the name of the result and NCCL's last error, and the
 * remedy if one is known. InvalidArgument and InvalidUsage give -EINVAL,
 * RemoteError gives -ECONNABORTED, InProgress gives -EAGAIN, and all others
 * give -EIO.
 */
int nccl_error(struct error *err, ncclResult_t result, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
