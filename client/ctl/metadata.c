/* Reads and writes the metadata of a bundle. Any process that may write to the
 * bundle can have made this member, so it is checked like a file. */
#include "client/ctl/metadata.h"

#include "client/ctl/broker.h"
#include "client/ctl/safetensors.h"
#include "client/fsdp.h"
#include "proto/error.h"
#include "proto/name.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

bool metadata_is_name(const char *name, const char *bundle)
{
	size_t size = strlen(bundle);

	return strncmp(name, bundle, size) == 0 &&
	       strcmp(name + size, SAFETENSORS_METADATA) == 0;
}

static int out_of_memory(struct error *err)
{
	return error_nomem(err, "the metadata");
}

static int put_text(struct fsdp_bundle *bundle, const char *name,
		    const char *text, struct error *err)
{
	struct fsdp_spec spec = {.dtype = FSDP_U8,
				 .n_dims = 1,
				 .shape = {(int64_t)strlen(text)}};
	uint64_t digest = XXH3_64bits(text, strlen(text));
	struct fsdp_tensor *tensor = NULL;
	int r = fsdp_bundle_alloc(bundle, &name, &spec, 1, &tensor);

	if (r == 0)
		r = fsdp_copy_in(tensor, 0, text, strlen(text));
	if (r == 0)
		r = fsdp_set_digests(&tensor, &digest, 1);
	/* The handle stays open until fsdp_close(). */
	return r < 0 ? broker_failed(err, r) : 0;
}

int metadata_put(struct fsdp_bundle *bundle, const char *name,
		 const json_t *metadata, struct error *err)
{
	char full[2 * FSDP_MAX_NAME + 2];
	char *text = json_dumps(metadata, JSON_COMPACT);
	int r;

	if (!text)
		return out_of_memory(err);
	snprintf(full, sizeof(full), "%s" SAFETENSORS_METADATA, name);
	r = put_text(bundle, full, text, err);
	free(text);
	return r;
}

static int parse(const char *text, size_t size, json_t **ret, struct error *err)
{
	json_t *object = json_loadb(text, size, JSON_REJECT_DUPLICATES, NULL);
	int r;

	if (!object)
		return error_set(err, -EINVAL,
				 "the bundle's " SAFETENSORS_METADATA
				 " is not valid JSON");
	r = safetensors_check_metadata(object, err);
	if (r < 0) {
		json_decref(object);
		return r;
	}
	*ret = object;
	return 0;
}

static int read_text(struct fsdp_tensor *tensor, json_t **ret,
		     struct error *err)
{
	struct fsdp_info info = {.struct_size = sizeof(info)};
	char *text;
	int r;

	fsdp_tensor_info(tensor, &info);
	if (info.size > SAFETENSORS_MAX_HEADER)
		return error_set(err, -EINVAL, "%s is too large for a header",
				 info.name);
	text = malloc(info.size + 1);
	if (!text)
		return out_of_memory(err);
	r = fsdp_copy_out(text, tensor, 0, info.size);
	if (r < 0)
		r = broker_failed(err, r);
	else
		r = parse(text, info.size, ret, err);
	free(text);
	return r;
}

int metadata_take(const char *name, struct fsdp_tensor **tensors, size_t *n,
		  json_t **ret, struct error *err)
{
	for (size_t i = 0; name_is_bundle(name) && i < *n; i++) {
		struct fsdp_info info = {.struct_size = sizeof(info)};
		int r;

		fsdp_tensor_info(tensors[i], &info);
		if (!metadata_is_name(info.name, name))
			continue;
		r = read_text(tensors[i], ret, err);
		fsdp_free(tensors[i]);
		memmove(&tensors[i], &tensors[i + 1],
			(--*n - i) * sizeof(*tensors));
		return r;
	}
	*ret = json_object();
	return *ret ? 0 : out_of_memory(err);
}

int metadata_get(struct fsdp_client *client, const char *bundle, json_t **ret,
		 struct error *err)
{
	struct fsdp_tensor *tensor = NULL;
	char full[FSDP_MAX_NAME + sizeof(SAFETENSORS_METADATA)];
	const char *name = full;
	int r;

	snprintf(full, sizeof(full), "%s" SAFETENSORS_METADATA, bundle);
	r = fsdp_get(client, &name, 1, NULL, &tensor);
	if (r == -ENOENT || r == -ENAMETOOLONG) {
		*ret = json_object();
		return *ret ? 0 : out_of_memory(err);
	}
	if (r < 0)
		return broker_failed(err, r);
	r = read_text(tensor, ret, err);
	fsdp_free(tensor);
	return r;
}
