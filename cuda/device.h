/*
 * Devices: the GPUs of this machine, by UUID. Ordinals differ between processes
 * (CUDA_VISIBLE_DEVICES), so only UUIDs leave a process.
 *
 * Instances of a GPU in MIG mode are devices too, each with a UUID of its own.
 * A driver shows at most one of them to a process.
 */
#pragma once
#include "cuda/driver.h"
#include "proto/device_uuid.h"
#include <stdbool.h>
#include <stdint.h>

struct error;

/* "GPU-" or "MIG-", and the usual form, with the final 0. */
#define DEVICE_TEXT_SIZE 41
#define DEVICE_MAX       64

struct device {
	struct device_uuid uuid;
	CUdevice ordinal; /* in this process */
	char name[64];
	uint64_t memory;      /* bytes in all */
	uint64_t granularity; /* of VMM allocations, recommended */
	bool is_mig;          /* an instance of a GPU */
	bool has_vmm, has_posix_fd, has_fabric, has_rdma;
	bool has_wait_value; /* 64-bit stream memory operations */
	bool has_ipc_events, has_readonly_register;
};

/* "GPU-01234567-89ab-...", or "MIG-..." for an instance that this process has
 * found: the UUID alone does not say what it is of. */
void device_format(const struct device_uuid *uuid, char ret[DEVICE_TEXT_SIZE]);
/* Either form back; -EINVAL with the form that is wanted, also for that of host
 * memory. */
int device_parse(const char *text, struct device_uuid *ret, struct error *err);

/*
 * All devices of this process, found once (driver_load() first, implied); no
 * context is needed or made. The list lives as long as the process. -ENODEV as
 * driver_load().
 */
int device_list(const struct device **ret, uint32_t *ret_n, struct error *err);

/* -ENODEV: the sentence lists those that are there, and mentions
 * CUDA_VISIBLE_DEVICES if it is set. */
int device_find(const struct device_uuid *uuid, const struct device **ret,
		struct error *err);

/*
 * Does its compute mode allow more than one process to have a context on it?
 * Asked anew each time, since it can be changed. -EBUSY: exclusive-process
 * mode (under MPS it shares all the same, so this is a warning until a context
 * is refused); -EPERM: prohibited. Sentence with the way out.
 */
int device_check_shareable(const struct device *device, struct error *err);

/*
 * For a process that must not become a client of MPS by accident: point
 * CUDA_MPS_PIPE_DIRECTORY at a folder that is not there. Call before
 * driver_load(), while there is one thread. Gives whether it was set to
 * anything by the caller's environment.
 */
bool device_leave_mps(void);
