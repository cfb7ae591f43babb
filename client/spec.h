/*
 * From the callers' descriptions of tensors to requests, for plain allocations
 * and those in bundles.
 */
#pragma once
#include "client/fsdp.h"
#include "proto/message.h"

struct received;
struct error;

/* NULL, or all 0: the defaults. Mode 0600 gives a group no rights, so with it a
 * gid of 0 counts as omitted. */
struct access_class spec_access(const struct fsdp_access *access);

/* A checked type. `strides` NULL: contiguous. The sentence of a refusal begins
 * with the field. */
int spec_to_type(const struct fsdp_spec *spec, const int64_t *strides,
		 struct tensor_type *ret, struct error *err);

/* Prefix such a sentence with "array[i]."; returns `r`. */
int spec_wrap(struct error *err, int r, const char *array, size_t i);

/* Send `alloc`, whose items are made of specs and names (NULL: none). */
int spec_alloc(struct fsdp_client *client, struct alloc_request *alloc,
	       const struct fsdp_spec *specs, const char *const *names,
	       struct received *ret, struct error *err);
