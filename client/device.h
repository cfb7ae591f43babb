/*
 * Conversion between struct fsdp_device of callers and the devices of cuda/.
 */
#pragma once
#include "client/fsdp.h"
#include "cuda/device.h"

struct error;

/* A `device` of NULL means the host, as does a UUID of 0. */
struct device_uuid device_uuid_of(const struct fsdp_device *device);
/* A `device` of NULL means the host. */
struct fsdp_device device_public(const struct device *device);

/* Check whether this process can make tensors on the device. For the host it
 * checks nothing, and does not load the driver. */
int device_check_usable(const struct device_uuid *uuid, struct error *err);
