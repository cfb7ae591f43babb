/*
 * Makes a bundle of files. Members are allocated batch by batch, while threads
 * fill the members of earlier batches.
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
	const char *name; /* name of the bundle; borrowed */
	struct fsdp_bundle *bundle;
	struct filler filler;
	/* The tensors and digests of all members, in the order of files and
	 * offsets. fsdp_close() frees the handles. */
	struct fsdp_tensor **tensors;
	uint64_t *digests;
	size_t n, n_max;
};

/* Begins a bundle of up to `n_max` members. */
int loader_begin(struct loader *loader, struct fsdp_client *client,
		 const char *name, const struct fsdp_bundle_options *options,
		 size_t n_max, struct progress *progress, struct error *err);

/* Returns the bytes that the bundle needs for these entries, for its
 * `size_hint`. */
uint64_t loader_size(const struct safetensors *from, bool is_on_device);

/* Allocates all tensors of a file and begins to fill them. `input` and `from`
 * must stay valid until loader_wait() returns. */
int loader_add(struct loader *loader, const struct input *input,
	       const struct safetensors *from, struct error *err);

/* Waits until all members are filled and loader->digests is complete. */
int loader_wait(struct loader *loader, struct error *err);

/* Records the digests and commits the bundle. `metadata` is left out if it is
 * NULL or empty, unless there are no other members. */
int loader_commit(struct loader *loader, const json_t *metadata,
		  uint64_t *ret_version, struct error *err);

/* Frees the loader. A bundle that was not committed is aborted. */
void loader_deinit(struct loader *loader);
