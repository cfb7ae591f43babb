/*
 * The node's devices, as far as the broker uses them: whether there is a CUDA
 * driver, which devices it has, and which of them provide memory.
 *
 * The driver is loaded on a worker thread, since that can take seconds. It is
 * loaded when a request needs memory on a device, which then waits for it, or
 * else shortly after the start, because during a restart all clients wait and
 * loading would compete for the CPUs. The broker never has a context: it makes
 * memory and counts it, but does not access it. A node without a driver works
 * on host memory, and keeps the device memory that an earlier broker made.
 */
#pragma once
#include "cuda/device.h"
#include "proto/error.h"
#include <stdint.h>
#include <uv.h>

struct base;

enum devices_state {
	DEVICES_LOADING = 0, /* is being loaded, or loading has not begun */
	DEVICES_READY = 1,
	DEVICES_NONE = 2, /* there is no driver, or it does not work */
};

struct devices {
	struct base *base; /* borrowed, set before the first call */
	enum devices_state state;
	uint32_t put_off;          /* deadline that starts loading; 0: none */
	struct error why;          /* valid in DEVICES_NONE */
	const struct device *list; /* valid in DEVICES_READY */
	uint32_t n;
	/* The error for which a device no longer provides memory. */
	struct error lost[DEVICE_MAX];
	/* Used by the worker thread until it is done. */
	uv_work_t load;
	int load_result;
	struct error load_err;
	const struct device *load_list;
	uint32_t load_n;
	/* Set if the device does not let several processes use it. */
	struct error exclusive[DEVICE_MAX];
};

/* Plans loading the driver soon. */
void devices_start(struct devices *devices);

/* Starts loading the driver; wake_room() is called when it is loaded. */
void devices_load(struct devices *devices);

enum devices_outcome {
	DEVICES_OK = 0,
	DEVICES_WAIT = 1, /* the driver is being loaded: park the request */
};

/*
 * Finds the description of a device on which memory can be made; it lives as
 * long as the process. If the driver is not loaded yet, the call starts loading
 * it and returns DEVICES_WAIT. -ENODEV: there is no driver or no such device
 * (the message lists the existing ones); -EIO: the device is lost.
 */
int devices_find(struct devices *devices, const struct device_uuid *uuid,
		 const struct device **ret, struct error *err);

/* Returns the limit for the bytes of all chunks on the device. */
uint64_t devices_memory_max(const struct devices *devices,
			    const struct device *device);

/* Records that the device returned an error that later calls cannot clear. */
void devices_note_lost(struct devices *devices, const struct device *device,
		       const struct error *cause);
