/*
 * The "__metadata__" of safetensors files, kept with their bundle: a member of
 * that name, of bytes, with the JSON text. No tensor can have that name in a
 * file, and a member lives, moves and is replaced as the bundle does.
 */
#pragma once
#include <jansson.h>
#include <stdbool.h>

struct error;
struct fsdp_bundle;
struct fsdp_client;
struct fsdp_tensor;

/* Is it that member of this bundle? */
bool metadata_is_name(const char *name, const char *bundle);

/* Put the object into the bundle that is being made. */
int metadata_put(struct fsdp_bundle *bundle, const char *name,
		 const json_t *metadata, struct error *err);

/* Read it from the member, which is held. */
int metadata_read(struct fsdp_tensor *tensor, json_t **ret, struct error *err);

/* The bundle's, an empty object if it has none. */
int metadata_get(struct fsdp_client *client, const char *bundle, json_t **ret,
		 struct error *err);
