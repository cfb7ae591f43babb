/*
 * Conversion of devices, and the list of those that this process sees.
 */
#include "client/device.h"
#include "client/error.h"
#include "cuda/context.h"
#include <string.h>

#define HOST "host"

_Static_assert(sizeof(struct fsdp_device) == sizeof(struct device_uuid) &&
		       FSDP_DEVICE_TEXT == DEVICE_TEXT_SIZE,
	       "one form of names");

struct device_uuid device_uuid_of(const struct fsdp_device *device)
{
	struct device_uuid uuid = {0};

	if (device)
		memcpy(uuid.bytes, device->uuid, sizeof(uuid.bytes));
	return uuid;
}

struct fsdp_device device_public(const struct device *device)
{
	struct fsdp_device ret = {0};

	if (device)
		memcpy(ret.uuid, device->uuid.bytes, sizeof(ret.uuid));
	return ret;
}

int device_check_usable(const struct device_uuid *uuid, struct error *err)
{
	const struct device *device;
	int r;

	if (device_uuid_is_host(uuid))
		return 0;
	r = device_find(uuid, &device, err);
	if (r < 0)
		return r;
	/* Mapping needs a context, too. If a device refuses one, it is better
	 * to fail here. */
	r = context_enter(device, err);
	if (r == 0)
		context_leave();
	return r;
}

int fsdp_device_parse(const char *text, struct fsdp_device *ret)
{
	struct device_uuid uuid = {0};
	int r = 0;

	if (strcmp(text, HOST) != 0)
		r = device_parse(text, &uuid, error_of_thread());
	if (r == 0)
		memcpy(ret->uuid, uuid.bytes, sizeof(ret->uuid));
	return r;
}

void fsdp_device_format(const struct fsdp_device *device,
			char ret[FSDP_DEVICE_TEXT])
{
	struct device_uuid uuid = device_uuid_of(device);

	if (device_uuid_is_host(&uuid))
		strcpy(ret, HOST);
	else
		device_format(&uuid, ret);
}

int fsdp_devices(fsdp_device_fn *fn, void *data)
{
	const struct device *devices;
	struct driver_info driver;
	uint32_t n;
	int r;

	r = device_list(&devices, &n, error_of_thread());
	if (r < 0)
		return r;
	driver_describe(&driver);
	for (uint32_t i = 0; i < n && r == 0; i++) {
		struct fsdp_device_entry entry = {
			.struct_size = sizeof(entry),
			.device = device_public(&devices[i]),
			.name = devices[i].name,
			.size = devices[i].memory,
			.ordinal = devices[i].ordinal,
			.may_be_shared =
				device_check_shareable(&devices[i], NULL) == 0,
			.is_fake = driver.is_fake,
		};

		r = fn(&entry, data);
	}
	return r;
}
