/*
 * Values of JSON documents.
 */
#pragma once
#include "client/fsdp.h"
#include <jansson.h>
#include <stdint.h>

/* Bytes that are no UTF-8, such as in the command of a process, become '?'. */
json_t *text_json(const char *text);
/* UINT64_MAX, no limit, is null. */
json_t *text_number(uint64_t value);
/* "host", or the UUID. */
json_t *text_device(const struct fsdp_device *device);
