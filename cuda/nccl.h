/*
 * NCCL, found at run time.
 *
 * All calls of NCCL in fsdp-worker and libfsdp go through the one table
 * `nccl`; nothing is linked. It is loaded once per process from $FSDP_LIBNCCL
 * (unless the process is set-uid), else libnccl.so.2. A node without one has
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
 * Load it, and the driver before it, once; later calls give the first one's
 * result. Thread-safe. driver_load()'s errors; -ENODEV: there is no
 * NCCL; -ENOSYS: it is of the wrong version (the sentence has the one found and
 * those that would do), or lacks a symbol; -EINVAL: one of driver and NCCL is a
 * test double and the other is not.
 */
int nccl_load(struct error *err);

struct nccl_info {
	const char *path; /* what was opened; "" before */
	int version;      /* 22809 is 2.28.9; 0 before */
	bool is_double;   /* a test double: it exports fsdp_is_test_double */
};
void nccl_describe(struct nccl_info *ret);

/*
 * Turn a result of NCCL into 0 or -errno and a sentence: what was tried
 * (`format`), what NCCL says (name and last error), and the way out where one
 * is known. InvalidArgument and InvalidUsage -EINVAL, RemoteError
 * -ECONNABORTED, InProgress -EAGAIN, all others -EIO.
 */
int nccl_error(struct error *err, ncclResult_t result, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
