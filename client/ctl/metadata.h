/*
 * The "__metadata__" of safetensors files, which is kept in the bundle as a
 * member of that name, with the JSON text as bytes. A file cannot have a tensor
 * of that name. As a member, the metadata is published, replaced and removed
 * together with the bundle.
 */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

struct error;
struct fsdp_bundle;
struct fsdp_client;
struct fsdp_tensor;

/* Returns whether `name` is the metadata of this bundle. */
bool metadata_is_name(const char *name, const char *bundle);

/* Adds the metadata to a bundle that is not committed yet. */
int metadata_put(struct fsdp_bundle *bundle, const char *name,
		 const json_t *metadata, struct error *err);

/* Reads the metadata of a tensor or bundle whose tensors the caller holds, and
 * takes its member, which it frees, from the array. A name without metadata has
 * an empty object. */
int metadata_take(const char *name, struct fsdp_tensor **tensors, size_t *n,
		  json_t **ret, struct error *err);

/* Gets the metadata of a bundle, or an empty object if it has none. */
int metadata_get(struct fsdp_client *client, const char *bundle, json_t **ret,
		 struct error *err);
