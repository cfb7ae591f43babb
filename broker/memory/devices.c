/*
 * Devices: loading the driver on a thread, and the log lines about it.
 */
#include "broker/memory/devices.h"
#include "broker/base/base.h"
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#define MIB        (UINT64_C(1) << 20)
#define PUT_OFF_MS 100

/* --- loading ------------------------------------------------------------- */

/* Runs on a thread. */
static void run_load(uv_work_t *req)
{
	struct devices *devices = req->data;

	devices->load_result = device_list(
		&devices->load_list, &devices->load_n, &devices->load_err);
	if (devices->load_result < 0)
		return;
	for (uint32_t i = 0; i < devices->load_n; i++)
		(void)device_check_shareable(&devices->load_list[i],
					     &devices->exclusive[i]);
}

/* Logs the driver. A fake driver must be easy to notice, since its GPUs compute
 * nothing. */
static void log_driver(const struct devices *devices)
{
	struct driver_info info;

	driver_describe(&info);
	if (info.is_fake)
		log_note(LOG_LEVEL_WARNING,
			 "%s is a FAKE of the CUDA driver for tests: "
			 "it has no devices, and nothing runs on a GPU",
			 info.path);
	log_line(LOG_LEVEL_INFO,
		 "CUDA driver %d.%d (%s) has %" PRIu32 " device%s",
		 info.version / 1000, info.version % 1000 / 10, info.path,
		 devices->n, devices->n == 1 ? "" : "s");
}

static void log_device(const struct devices *devices, uint32_t i)
{
	const struct device *device = &devices->list[i];
	const struct error *exclusive = &devices->exclusive[i];
	char text[DEVICE_TEXT_SIZE];

	device_format(&device->uuid, text);
	log_line(LOG_LEVEL_INFO,
		 "device %s: %s, %" PRIu64 " MiB, of which tensors may take "
		 "%" PRIu64,
		 text, device->name, device->memory / MIB,
		 devices_memory_max(devices, device) / MIB);
	if (exclusive->code < 0)
		log_note(LOG_LEVEL_WARNING, "%s", exclusive->msg);
}

/* Logs why there are no devices. A missing driver is normal; a driver that
 * fails is worth a warning. */
static void log_none(const struct error *why)
{
	log_note(why->code == -ENODEV ? LOG_LEVEL_INFO : LOG_LEVEL_WARNING,
		 "host memory only: %s", why->msg);
}

static void done_load(uv_work_t *req, int status)
{
	struct devices *devices = req->data;

	(void)status; /* the work is never cancelled */
	if (devices->load_result < 0) {
		devices->state = DEVICES_NONE;
		devices->why = devices->load_err;
		log_none(&devices->why);
	} else {
		devices->state = DEVICES_READY;
		devices->list = devices->load_list;
		devices->n = devices->load_n;
		log_driver(devices);
		for (uint32_t i = 0; i < devices->n; i++)
			log_device(devices, i);
	}
	wake_room(&devices->base->wake);
}

void devices_load(struct devices *devices)
{
	int r;

	*devices = (struct devices){.base = devices->base};
	devices->load.data = devices;
	r = uv_queue_work(&devices->base->loop.uv, &devices->load, run_load,
			  done_load);
	assert(r == 0); /* uv_queue_work() fails only without a function */
}

static void on_due(void *data, uint32_t index)
{
	(void)index;
	devices_load(data);
}

void devices_start(struct devices *devices)
{
	struct deadline deadline = {
		.at_ms = now_ms() + PUT_OFF_MS,
		.fn = on_due,
		.data = devices,
		.position = &devices->put_off,
	};

	*devices = (struct devices){.base = devices->base};
	if (deadlines_add(&devices->base->deadlines, &deadline, NULL) < 0)
		devices_load(devices);
}

/* --- lookup -------------------------------------------------------------- */

static int refuse(const struct device_uuid *uuid, const struct error *why,
		  struct error *err)
{
	char text[DEVICE_TEXT_SIZE];

	device_format(uuid, text);
	return error_set(err, why->code, "cannot use memory on %s: %s", text,
			 why->msg);
}

int devices_find(struct devices *devices, const struct device_uuid *uuid,
		 const struct device **ret, struct error *err)
{
	const struct device *device;
	size_t i;
	int r;

	if (devices->put_off) {
		deadlines_remove(&devices->base->deadlines, &devices->put_off);
		devices_load(devices);
	}
	if (devices->state == DEVICES_LOADING)
		return DEVICES_WAIT;
	if (devices->state == DEVICES_NONE)
		return refuse(uuid, &devices->why, err);
	r = device_find(uuid, &device, err);
	if (r < 0)
		return r;
	i = (size_t)(device - devices->list);
	if (devices->lost[i].code < 0)
		return refuse(uuid, &devices->lost[i], err);
	*ret = device;
	return DEVICES_OK;
}

uint64_t devices_memory_max(const struct devices *devices,
			    const struct device *device)
{
	uint64_t max = devices->base->config.device_memory_max;

	if (max == 0)
		max = device->memory / 10 * 9;
	return max < device->memory ? max : device->memory;
}

void devices_note_lost(struct devices *devices, const struct device *device,
		       const struct error *cause)
{
	size_t i = (size_t)(device - devices->list);

	if (devices->lost[i].code < 0)
		return;
	devices->lost[i] = *cause;
	log_note(LOG_LEVEL_ERROR,
		 "fsdpd allocates no more memory on a device: %s", cause->msg);
}
