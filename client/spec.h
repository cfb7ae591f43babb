/*
 * From what callers say of tensors to what the broker is asked: shared by
 * plain allocations and those in bundles.
 */
#pragma once
#include "client/fsdp.h"
#include "proto/message.h"

struct answer;
struct error;

/* NULL, or all 0: the defaults. A group can do nothing with mode 0600, so a
 * gid of 0 beside it is one that was left out. */
struct access_class spec_access(const struct fsdp_access *access);

/* A checked type. `strides` NULL: contiguous. The sentence of a refusal begins
 * with the field. */
int spec_to_type(const struct fsdp_spec *spec, const int64_t *strides,
		 struct tensor_type *ret, struct error *err);

/* Put "array[i]." in front of such a sentence; gives `r`. */
int spec_wrap(struct error *err, int r, const char *array, size_t i);

/* Send `alloc`, whose items are made from specs and names (NULL: none). */
int spec_alloc(struct fsdp_client *client, struct alloc_request *alloc,
	       const struct fsdp_spec *specs, const char *const *names,
	       struct answer *ret, struct error *err);
