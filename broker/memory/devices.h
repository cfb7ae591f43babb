/*
 * The node's devices, as far as the broker uses them: whether there is a CUDA
 * driver, which devices it has, and which of them provide memory.
 *
 * The driver is loaded on a worker thread, since that can take seconds: when a
 * request needs memory on a device, and waits for it, or else shortly after the
 * start, because during a restart all clients wait and loading would compete
 * for the CPUs. The broker never has a context: it makes memory and counts it,
 * but does not access it. A node without a driver works on host memory, and
 * memory from before on its devices stays.
 */
#pragma once
#include "cuda/device.h"
#include "proto/error.h"
#include <stdint.h>
#include <uv.h>

struct base;

enum devices_state {
	DEVICES_LOADING = 0, /* loading, or not started yet */
	DEVICES_READY = 1,
	DEVICES_NONE = 2, /* no driver, or none that works */
};

struct devices {
	struct base *base; /* borrowed, set before the first call */
	enum devices_state state;
	uint32_t put_off;          /* deadline that starts loading; 0: none */
	struct error why;          /* valid in DEVICES_NONE */
	const struct device *list; /* valid in DEVICES_READY */
	uint32_t n;
	/* Why a device no longer provides memory. */
	struct error lost[DEVICE_MAX];
	/* Used by the worker thread until it is done. */
	uv_work_t load;
	int load_result;
	struct error load_err;
	const struct device *load_list;
	uint32_t load_n;
	/* Set if other processes may not use the device beside us. */
	struct error exclusive[DEVICE_MAX];
};

/* Plan loading the driver soon. */
void devices_start(struct devices *devices);

/* Start loading the driver; wake_room() follows when it is done. */
void devices_load(struct devices *devices);

enum devices_outcome {
	DEVICES_OK = 0,
	DEVICES_WAIT = 1, /* park: the driver is being loaded */
};

/*
 * Find the description of a device on which memory can be made; it lives as
 * long as the process. A request that must wait for the driver has it loaded.
 * -ENODEV: there is no driver or no such device (the message lists the existing
 * ones); -EIO: the device is lost.
 */
int devices_find(struct devices *devices, const struct device_uuid *uuid,
		 const struct device **ret, struct error *err);

/* The limit for the bytes of all chunks on the device. */
uint64_t devices_memory_max(const struct devices *devices,
			    const struct device *device);

/* The device returned an error that later calls cannot clear. */
void devices_note_lost(struct devices *devices, const struct device *device,
		       const struct error *cause);
