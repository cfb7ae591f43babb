/*
 * The node's devices, as far as the broker needs to know them: whether there
 * is a CUDA driver, which devices it has, and which of them give memory.
 *
 * The driver is loaded on a worker thread, since that can take seconds, when
 * somebody wants memory on a device, who waits for it, or else a moment after
 * the start: a restart must not share its CPUs with that, since all clients
 * wait. The broker never has a context: it makes memory and counts, and touches
 * nothing. A node without a driver works on host memory, and what lies on its
 * devices from before stays.
 */
#pragma once
#include "cuda/device.h"
#include "proto/error.h"
#include <stdint.h>
#include <uv.h>

struct broker;

enum devices_state {
	DEVICES_LOADING = 0, /* or will be */
	DEVICES_READY = 1,
	DEVICES_NONE = 2, /* no driver, or none that works */
};

struct devices {
	struct broker *broker;
	enum devices_state state;
	uint32_t put_off;          /* deadline of loading; 0: none */
	struct error why;          /* DEVICES_NONE */
	const struct device *list; /* DEVICES_READY */
	uint32_t n;
	struct error lost[DEVICE_MAX]; /* why one gives no memory any more */
	/* Of the worker thread, until it is done: */
	uv_work_t load;
	int load_result;
	struct error load_err;
	const struct device *load_list;
	uint32_t load_n;
	struct error exclusive[DEVICE_MAX]; /* one that others may not use
					       beside us */
};

/* Have the driver be loaded soon. */
void devices_start(struct broker *broker);

/* Begin to load the driver; waiters_wake_room() when it is done. */
void devices_load(struct broker *broker);

enum devices_outcome {
	DEVICES_OK = 0,
	DEVICES_WAIT = 1, /* the driver is being loaded: park */
};

/*
 * Can memory be made on it? Whoever must wait for the driver has it loaded.
 * -ENODEV: there is no driver, or no such device
 * (the sentence lists those there are); -EIO: it is lost. Else its description,
 * which lives as long as the process.
 */
int devices_find(struct devices *devices, const struct device_uuid *uuid,
		 const struct device **ret, struct error *err);

/* How many bytes of chunks may be on it together. */
uint64_t devices_memory_max(const struct devices *devices,
			    const struct device *device);

/* It answered with an error that no later call will mend. */
void devices_note_lost(struct devices *devices, const struct device *device,
		       const struct error *cause);
