/*
 * Devices are the GPUs of this machine, identified by UUID. Ordinals differ
 * between processes (CUDA_VISIBLE_DEVICES), so only UUIDs are sent to other
 * processes.
 *
 * Instances of a GPU in MIG mode are devices, too, and have UUIDs of their own.
 * A driver shows at most one instance to a process.
 */
#pragma once
#include "cuda/driver.h"
#include "proto/device_uuid.h"
#include <stdbool.h>
#include <stdint.h>

struct error;

/* Bytes of "GPU-" or "MIG-" and a UUID, including the final 0. */
#define DEVICE_TEXT_SIZE 41
#define DEVICE_MAX       64

struct device {
	struct device_uuid uuid;
	CUdevice ordinal; /* in this process */
	char name[64];
	uint64_t memory;      /* total bytes */
	uint64_t granularity; /* recommended granularity of VMM allocations */
	bool is_mig;          /* it is an instance of a GPU */
	bool has_vmm, has_posix_fd, has_rdma;
	bool has_wait_value; /* it has 64-bit stream memory operations */
	bool has_ipc_events, has_readonly_register;
};

/* Writes "GPU-01234567-89ab-...", or "MIG-..." if this process has found the
 * instance. The UUID alone does not tell instances from GPUs. */
void device_format(const struct device_uuid *uuid, char ret[DEVICE_TEXT_SIZE]);
/* Reads either form. Returns -EINVAL with a sentence that shows the correct
 * form, also for the UUID of host memory. */
int device_parse(const char *text, struct device_uuid *ret, struct error *err);

/*
 * Returns all devices of this process. They are found once, after
 * driver_load(), which this calls. No context is needed or made. The list is
 * valid until the process ends. Fails like driver_load().
 */
int device_list(const struct device **ret, uint32_t *ret_n, struct error *err);

/* Returns -ENODEV if there is no such device. The sentence lists all devices,
 * and mentions CUDA_VISIBLE_DEVICES if it is set. */
int device_find(const struct device_uuid *uuid, const struct device **ret,
		struct error *err);

/*
 * Checks that the compute mode allows several processes to have a context on
 * the device. It asks the driver each time, since the mode can change. Returns
 * -EBUSY for the exclusive-process mode (MPS can share the device even so; the
 * caller should only warn until a context is refused), and -EPERM for the
 * prohibited mode. The sentence has the remedy.
 */
int device_check_shareable(const struct device *device, struct error *err);

/*
 * Sets CUDA_MPS_PIPE_DIRECTORY to a path that cannot exist, so that this
 * process does not become a client of MPS. It must be called before
 * driver_load(), while the process has one thread. Returns whether the variable
 * was set before.
 */
bool device_leave_mps(void);
