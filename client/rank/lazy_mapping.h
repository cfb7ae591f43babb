/*
 * A lazy mapping: memory of a group that was granted to this rank and is not
 * mapped yet. Mapping device memory needs a context, which a rank that leaves
 * all work to fsdp-worker may never need; so it is mapped when the first
 * address is needed.
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

/* Store the grant of `place`; there is none yet. */
void lazy_mapping_take(struct lazy_mapping *lazy_mapping,
		       const struct tensor_place *place, bool is_writable);

/* Map it and make a handle, which then has the hold; does nothing if there is
 * no grant. On failure the hold is dropped. */
int lazy_mapping_map(struct lazy_mapping *lazy_mapping,
		     struct fsdp_client *client, struct fsdp_tensor **ret,
		     struct error *err);

/* Return the grant, if there is one. */
void lazy_mapping_drop(struct lazy_mapping *lazy_mapping,
		       struct fsdp_client *client);
