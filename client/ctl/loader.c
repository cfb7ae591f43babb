/* Makes a bundle of files. */
#include "client/ctl/loader.h"

#include "client/ctl/broker.h"
#include "client/ctl/input.h"
#include "client/ctl/interrupt.h"
#include "client/ctl/metadata.h"
#include "client/ctl/safetensors.h"
#include "proto/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The members of one allocation request. Names are full names: the bundle's
 * name and then the name in the file. */
struct batch {
	size_t n;
	char names[FSDP_MAX_BATCH][FSDP_MAX_NAME + 1];
	const char *pointers[FSDP_MAX_BATCH];
	struct fsdp_spec specs[FSDP_MAX_BATCH];
};

int loader_begin(struct loader *loader, struct fsdp_client *client,
		 const char *name, const struct fsdp_bundle_options *options,
		 size_t n_max, struct progress *progress, struct error *err)
{
	int r;

	/* One more element, because calloc(0) may return NULL without being out
	 * of memory. */
	*loader = (struct loader){
		.name = name,
		.n_max = n_max,
		.tensors = calloc(n_max + 1, sizeof(struct fsdp_tensor *)),
		.digests = calloc(n_max + 1, sizeof(uint64_t))};
	if (!loader->tensors || !loader->digests)
		return error_nomem(err, "a bundle");
	r = filler_start(progress, &loader->filler, err);
	if (r < 0)
		return r;
	r = fsdp_bundle_begin(client, name, options, &loader->bundle);
	return r < 0 ? broker_failed(err, r) : 0;
}

uint64_t loader_size(const struct safetensors *from, bool is_on_device)
{
	const uint64_t align = is_on_device ? 512 : 64;
	uint64_t size = 0;

	for (size_t i = 0; i < from->n_entries; i++)
		size += (from->entries[i].size + align - 1) & ~(align - 1);
	return size;
}

static void fill_batch(struct batch *batch, const char *prefix,
		       const struct safetensors_entry *entries, size_t n_left)
{
	batch->n = n_left < FSDP_MAX_BATCH ? n_left : FSDP_MAX_BATCH;
	for (size_t i = 0; i < batch->n; i++) {
		const struct tensor_type *type = &entries[i].type;
		struct fsdp_spec *spec = &batch->specs[i];

		snprintf(batch->names[i], sizeof(batch->names[i]), "%s%s",
			 prefix, entries[i].name);
		batch->pointers[i] = batch->names[i];
		spec->dtype = (enum fsdp_dtype)type->dtype;
		spec->n_dims = type->n_dims;
		memcpy(spec->shape, type->shape, sizeof(spec->shape));
	}
}

static int add_batch(struct loader *loader, struct batch *batch,
		     const struct input *input,
		     const struct safetensors_entry *entries, struct error *err)
{
	struct fsdp_tensor **tensors = loader->tensors + loader->n;
	int r = fsdp_bundle_alloc(loader->bundle, batch->pointers, batch->specs,
				  batch->n, tensors);

	if (r < 0)
		return broker_failed(err, r);
	r = filler_add(&loader->filler, input, entries, tensors, batch->n,
		       loader->digests + loader->n, err);
	loader->n += batch->n;
	return r;
}

int loader_add(struct loader *loader, const struct input *input,
	       const struct safetensors *from, struct error *err)
{
	struct batch *batch = malloc(sizeof(*batch));
	int r = 0;

	if (!batch)
		return error_nomem(err, "a batch");
	for (size_t i = 0; r == 0 && i < from->n_entries; i += batch->n) {
		fill_batch(batch, loader->name, &from->entries[i],
			   from->n_entries - i);
		r = add_batch(loader, batch, input, &from->entries[i], err);
	}
	free(batch);
	return r;
}

int loader_wait(struct loader *loader, struct error *err)
{
	return filler_wait(&loader->filler, err);
}

int loader_commit(struct loader *loader, const json_t *metadata,
		  uint64_t *ret_version, struct error *err)
{
	int r = 0;

	/* A bundle needs a member, so a model without tensors gets its metadata
	 * as the only one. */
	if (json_object_size(metadata) > 0 || loader->n == 0)
		r = metadata_put(loader->bundle, loader->name, metadata, err);
	if (r == 0)
		r = interrupt_check(err);
	if (r < 0)
		return r;
	r = fsdp_set_digests(loader->tensors, loader->digests, loader->n);
	if (r == 0)
		r = fsdp_bundle_commit(loader->bundle, ret_version);
	if (r < 0)
		return broker_failed(err, r);
	loader->bundle = NULL;
	return 0;
}

void loader_deinit(struct loader *loader)
{
	filler_stop(&loader->filler);
	fsdp_bundle_abort(loader->bundle);
	free(loader->tensors);
	free(loader->digests);
	*loader = (struct loader){0};
}
