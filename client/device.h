/*
 * Devices as callers name them, and as cuda/ knows them.
 */
#pragma once
#include "client/fsdp.h"
#include "cuda/device.h"

struct error;

/* NULL is the host, too. */
struct device_uuid device_uuid_of(const struct fsdp_device *device);
/* NULL is the host. */
struct fsdp_device device_public(const struct device *device);

/* May tensors be made there by this process? Nothing is looked at, and no
 * driver loaded, for the host. */
int device_check_usable(const struct device_uuid *uuid, struct error *err);
