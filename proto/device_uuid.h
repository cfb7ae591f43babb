/*
 * The UUID of a GPU, which is the same in all processes of a node.
 * cuda/device.h has its text form.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define DEVICE_UUID_SIZE 16

struct device_uuid {
	uint8_t bytes[DEVICE_UUID_SIZE]; /* all 0: host memory */
};

static inline bool device_uuid_is_host(const struct device_uuid *uuid)
{
	static const struct device_uuid host;

	return memcmp(uuid, &host, sizeof(host)) == 0;
}
