/*
 * Turns the callers' descriptions of tensors into requests, for plain
 * allocations and those in bundles.
 */
#pragma once
#include "client/fsdp.h"
#include "proto/message.h"

struct received;
struct error;

/* Convert permissions. If `access` is NULL or its mode is 0, the gid is
 * ignored, and both get their defaults. */
struct access_class spec_access(const struct fsdp_access *access);

/* Convert and check a type; `strides` of NULL: contiguous. The message of a
 * refusal begins with the name of the field. */
int spec_to_type(const struct fsdp_spec *spec, const int64_t *strides,
		 struct tensor_type *ret, struct error *err);

/* Prefix the message of spec_to_type() with "array[i]."; returns `r`. */
int spec_wrap(struct error *err, int r, const char *array, size_t i);

/* Send `alloc`, with items of the specs and names (NULL: no names). On success
 * the caller owns the reply. */
int spec_alloc(struct fsdp_client *client, struct alloc_request *alloc,
	       const struct fsdp_spec *specs, const char *const *names,
	       struct received *ret, struct error *err);
