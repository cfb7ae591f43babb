/*
 * A bundle that is made of files: its members are allocated batch by batch
 * while threads fill those before.
 */
#pragma once
#include "client/ctl/filler.h"
#include "client/fsdp.h"

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

struct error;
struct input;
struct progress;
struct safetensors;

struct loader {
	const char *name; /* of the bundle; borrowed */
	struct fsdp_bundle *bundle;
	struct filler filler;
	/* Of all members, in the order of files and offsets. Handles are freed
	 * by fsdp_close(). */
	struct fsdp_tensor **tensors;
	uint64_t *digests;
	size_t n, n_max;
};

/* Begin the bundle of up to `n_max` members. */
int loader_begin(struct loader *loader, struct fsdp_client *client,
		 const char *name, const struct fsdp_bundle_options *options,
		 size_t n_max, struct progress *progress, struct error *err);

/* The bytes that a bundle needs for the entries: its size_hint. */
uint64_t loader_size(const struct safetensors *from, bool is_on_device);

/* Allocate all tensors of a file and begin to fill them. `input` and `from`
 * stay until loader_wait(). */
int loader_add(struct loader *loader, const struct input *input,
	       const struct safetensors *from, struct error *err);

/* All are filled, and loader->digests is complete. */
int loader_wait(struct loader *loader, struct error *err);

/* Record the digests, and make the bundle visible with `metadata`, which is
 * left out if it is NULL or empty and there are members. */
int loader_commit(struct loader *loader, const json_t *metadata,
		  uint64_t *ret_version, struct error *err);

/* Without loader_commit() before it, nothing is left behind. */
void loader_deinit(struct loader *loader);
