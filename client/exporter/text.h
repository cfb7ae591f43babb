/*
 * Values of JSON documents.
 */
#pragma once
#include "client/fsdp.h"
#include <jansson.h>
#include <stdint.h>

/* A number; UINT64_MAX, which means no limit, becomes null. */
json_t *text_number(uint64_t value);
/* "host", or the UUID of the device. */
json_t *text_device(const struct fsdp_device *device);
