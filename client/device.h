/*
 * Devices: from the form that callers use to that of cuda/.
 */
#pragma once
#include "client/fsdp.h"
#include "cuda/device.h"

struct error;

/* NULL also means the host. */
struct device_uuid device_uuid_of(const struct fsdp_device *device);
/* NULL is the host. */
struct fsdp_device device_public(const struct device *device);

/* Can this process make tensors there? For the host nothing is checked, and no
 * driver is loaded. */
int device_check_usable(const struct device_uuid *uuid, struct error *err);
