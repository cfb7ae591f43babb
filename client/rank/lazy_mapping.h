/*
 * Lazy mappings: memory of a group that was granted to this rank and is not
 * mapped yet. Mapping device memory needs a context, which a rank that leaves
 * all work to fsdp-worker may never need. So the memory is mapped when its
 * first address is needed.
 */
#pragma once
#include "proto/message.h"
#include <stdbool.h>

struct error;
struct fsdp_client;
struct fsdp_tensor;

struct lazy_mapping {
	bool is_held;
	bool is_writable;
	struct tensor_place place;
};

/* Store the grant of `place`. The struct must be empty. */
void lazy_mapping_take(struct lazy_mapping *lazy_mapping,
		       const struct tensor_place *place, bool is_writable);

/* Map the memory and make a handle, which then has the hold. Does nothing if
 * there is no grant. On failure the hold is dropped. */
int lazy_mapping_map(struct lazy_mapping *lazy_mapping,
		     struct fsdp_client *client, struct fsdp_tensor **ret,
		     struct error *err);

/* Return the grant, if there is one. */
void lazy_mapping_drop(struct lazy_mapping *lazy_mapping,
		       struct fsdp_client *client);
