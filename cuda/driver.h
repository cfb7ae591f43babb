/*
 * The CUDA driver, found at run time.
 *
 * All driver calls of fsdpd, fsdp-worker and libfsdp go through one table,
 * `cu`; nothing is linked. The library is loaded once per process, from
 * $FSDP_LIBCUDA (unless the process is set-uid) or else libcuda.so.1. A node
 * without a driver has no devices and works on host memory.
 *
 * driver_api.h declares the part of the driver's interface that we use, so a
 * build needs no toolkit; if a toolkit is present, unit/test_driver_api
 * compares the two.
 *
 * The broker never has a context, so it may only make calls that need none.
 */
#pragma once
#include "cuda/driver_api.h"
#include "cuda/driver_symbols.h"
#include <stdbool.h>

struct error;

#define DRIVER_VERSION_MIN 12000 /* cuLibraryLoadData(); series 525 */

struct driver {
	/* One member per symbol, named without "cu": cu.MemCreate(...). */
#define DRIVER_MEMBER(name) __typeof__(cu##name) *name;
	DRIVER_SYMBOLS(DRIVER_MEMBER)
	DRIVER_OPTIONAL_SYMBOLS(DRIVER_MEMBER) /* may be NULL */
#undef DRIVER_MEMBER
	/* cuDeviceGetUuid() before its _v2, which that name stands for now: of
	 * an instance of a GPU in MIG mode it gives the GPU's. May be NULL. */
	__typeof__(cuDeviceGetUuid) *DeviceGetGpuUuid;
};

extern struct driver cu;

/*
 * Load and initialise it, once; later calls give the first one's result.
 * Thread-safe; may take seconds. -ENODEV: there is no driver or no device, or
 * they do not work together; -EPERM: it may not open the devices; -ENOSYS: it
 * is too old (the sentence names the missing symbol, and the version found and
 * needed). -ECHILD: after fork() of a process that has it.
 */
int driver_load(struct error *err);

/* Is there a library of that name, whether it works or not? Takes no longer
 * than to open it. */
bool driver_is_installed(void);

/*
 * For a process that is all ours: have the driver give its streams as many
 * hardware queues as it can, unless the environment says how many. Streams that
 * share one wait for each other (fence.h). Call it before driver_load(), while
 * there is one thread, since it changes the environment.
 */
void driver_ask_for_queues(void);

struct driver_info {
	const char *path; /* what was opened; "": nothing */
	int version;      /* 13000 is 13.0; 0: unknown */
	bool is_fake;     /* a fake: it exports fsdp_is_fake */
};
/* After driver_load(), which may have failed: then what it tried. */
void driver_describe(struct driver_info *ret);

/*
 * Turn a result of the driver into 0 or -errno and a sentence: what was tried
 * (`format`), what the driver says (text and name), and the way out where one
 * is known. OUT_OF_MEMORY -ENOMEM, INVALID_VALUE and INVALID_HANDLE -EINVAL,
 * INVALID_CONTEXT and CONTEXT_IS_DESTROYED -EINVAL, NOT_INITIALIZED -ECHILD
 * (it means a fork), NOT_READY -EAGAIN, NOT_PERMITTED and NOT_SUPPORTED
 * -EOPNOTSUPP, DEVICE_UNAVAILABLE -EBUSY, ALREADY_MAPPED -EEXIST; sticky ones
 * (ILLEGAL_ADDRESS, LAUNCH_FAILED, CONTAINED, ECC, ...) -EIO, and the sentence
 * says that the process must restart.
 */
int driver_error(struct error *err, CUresult result, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* No later call in this process can work: see above. */
bool driver_is_sticky(CUresult result);
