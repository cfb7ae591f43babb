/*
 * A claim: memory of a group that was granted to this rank and is not mapped
 * yet. On a device mapping wants a context, which a rank that leaves all work
 * to fsdp-worker may never need; so it waits until somebody asks for an
 * address.
 */
#pragma once
#include "proto/message.h"
#include <stdbool.h>

struct error;
struct fsdp_client;
struct fsdp_tensor;

struct claim {
	bool is_held;
	bool is_writable;
	struct tensor_place place;
};

/* It has none; the grant is the claim's now. */
void claim_take(struct claim *claim, const struct tensor_place *place,
		bool is_writable);

/* Make it a handle, which has the hold then; nothing if there is none. On
 * failure nothing is held any more. */
int claim_map(struct claim *claim, struct fsdp_client *client,
	      struct fsdp_tensor **ret, struct error *err);

/* Give it back, if there is one. */
void claim_drop(struct claim *claim, struct fsdp_client *client);
