/*
 * The CUDA driver is found at run time.
 *
 * All driver calls of fsdpd, fsdp-worker and libfsdp go through one table,
 * `cu`; nothing is linked. The library is loaded once per process, from
 * $FSDP_LIBCUDA (unless the process is set-uid) or else libcuda.so.1. A node
 * without a driver has no devices and works on host memory.
 *
 * driver_api.h declares the part of the driver's interface that we use, so a
 * build needs no toolkit. If a toolkit is present, unit/test_driver_api
 * compares the two.
 *
 * The broker never has a context, so it may only make calls that need none.
 */
#pragma once
#include "cuda/driver_api.h"
#include "cuda/driver_symbols.h"
#include <stdbool.h>

struct error;

/* The first version with cuLibraryLoadData() (series 525). */
#define DRIVER_VERSION_MIN 12000

struct driver {
	/* One member per symbol, named without "cu": cu.MemCreate(...). */
#define DRIVER_MEMBER(name) __typeof__(cu##name) *name;
	DRIVER_SYMBOLS(DRIVER_MEMBER)
	DRIVER_OPTIONAL_SYMBOLS(DRIVER_MEMBER) /* may be NULL */
#undef DRIVER_MEMBER
	/* The first version of cuDeviceGetUuid(); that name now means
	 * cuDeviceGetUuid_v2(). For an instance of a GPU in MIG mode it returns
	 * the UUID of the GPU. May be NULL. */
	__typeof__(cuDeviceGetUuid) *DeviceGetGpuUuid;
};

extern struct driver cu;

/*
 * Loads and initialises the driver once; later calls return the first result.
 * It is thread-safe, and may take seconds. Returns -ENODEV if there is no
 * driver or no device, or if they do not work together; -EPERM if the process
 * may not open the devices; -ENOSYS if the driver is too old (the sentence
 * names the missing symbol, and the version found and needed); -ECHILD if the
 * process was forked from one that has loaded the driver.
 */
int driver_load(struct error *err);

/* Returns whether the driver's library exists, even if it does not work. It
 * only opens the library. */
bool driver_is_installed(void);

/*
 * For programs of our own: makes the driver give the streams of this process as
 * many hardware queues as it can, unless the environment sets their number.
 * Streams that share a queue wait for each other (fence.h). It must be called
 * before driver_load(), while the process has one thread, since it changes the
 * environment.
 */
void driver_ask_for_queues(void);

struct driver_info {
	const char *path; /* path of the opened library, or "" */
	int version;      /* 13000 means 13.0; 0 if unknown */
	bool is_fake;     /* the library exports fsdp_is_fake */
};
/* Describes the library after driver_load(). If that failed, this is the
 * library that it tried. */
void driver_describe(struct driver_info *ret);

/*
 * Turns a result of the driver into 0, or into a negative errno with a
 * sentence: the attempt (`format`), the driver's text and name of the error,
 * and the remedy if one is known. OUT_OF_MEMORY gives -ENOMEM; INVALID_VALUE,
 * INVALID_HANDLE, INVALID_CONTEXT and CONTEXT_IS_DESTROYED give -EINVAL;
 * NOT_INITIALIZED gives -ECHILD (it means a fork); NOT_READY gives -EAGAIN;
 * NOT_PERMITTED and NOT_SUPPORTED give -EOPNOTSUPP; DEVICE_UNAVAILABLE gives
 * -EBUSY; ALREADY_MAPPED gives -EEXIST. Sticky errors (ILLEGAL_ADDRESS,
 * LAUNCH_FAILED, CONTAINED, ECC, ...) give -EIO, and the sentence says that the
 * process must restart.
 */
int driver_error(struct error *err, CUresult result, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* Returns whether the error is sticky: no later driver call of this process can
 * succeed. */
bool driver_is_sticky(CUresult result);
