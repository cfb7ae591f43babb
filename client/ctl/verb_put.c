/* put: publishes one tensor from a file. */
#include "client/ctl/args.h"
#include "client/ctl/broker.h"
#include "client/ctl/document.h"
#include "client/ctl/filler.h"
#include "client/ctl/input.h"
#include "client/ctl/interrupt.h"
#include "client/ctl/progress.h"
#include "client/ctl/verb.h"
#include "client/fsdp.h"
#include "proto/error.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define RAW_BITS (ARG_BIT(ARG_DTYPE) | ARG_BIT(ARG_SHAPE))

static int check_put(const struct args *args, struct error *err)
{
	uint32_t raw = args->given & RAW_BITS;

	if (!args->name)
		return error_set(err, -EINVAL, "put needs --name NAME");
	if (raw && raw != RAW_BITS)
		return error_set(err, -EINVAL,
				 "--dtype and --shape belong together");
	return 0;
}

static int alloc_tensor(struct fsdp_client *client, const struct args *args,
			const struct tensor_type *type,
			struct fsdp_tensor **ret, struct error *err)
{
	struct fsdp_spec spec = {.dtype = (enum fsdp_dtype)type->dtype,
				 .n_dims = type->n_dims};
	struct fsdp_access access = {.gid = args->gid, .mode = args->mode};
	int r;

	memcpy(spec.shape, type->shape, sizeof(spec.shape));
	r = fsdp_alloc_on(client, &args->device, &spec, 1, &access,
			  args->timeout_ms, ret);
	return r < 0 ? broker_failed(err, r) : 0;
}

static int fill_tensor(const struct input *input,
		       const struct safetensors_entry *entry,
		       struct fsdp_tensor *tensor, bool is_quiet,
		       struct error *err)
{
	struct progress progress;
	struct filler filler;
	uint64_t digest = 0;
	int r;

	progress_init(&progress, input->path, entry->size, is_quiet);
	interrupt_catch();
	r = filler_start(&progress, &filler, err);
	if (r < 0)
		return r;
	r = filler_add(&filler, input, entry, &tensor, 1, &digest, err);
	if (r == 0)
		r = filler_wait(&filler, err);
	filler_stop(&filler);
	progress_deinit(&progress);
	if (r == 0)
		r = interrupt_check(err);
	if (r < 0)
		return r;
	r = fsdp_set_digests(&tensor, &digest, 1);
	return r < 0 ? broker_failed(err, r) : 0;
}

static int publish_tensor(struct fsdp_client *client, const struct args *args,
			  struct fsdp_tensor *tensor, struct error *err)
{
	struct fsdp_publication publication = {
		.tensor = tensor, .name = args->name, .ttl_ms = args->ttl_ms};
	int r;

	if (args_has(args, ARG_REPLACE))
		publication.flags |= FSDP_REPLACE;
	if (args_has(args, ARG_EVICTABLE))
		publication.flags |= FSDP_EVICTABLE;
	r = fsdp_publish(client, &publication, 1);
	if (r < 0)
		return broker_failed(err, r);
	if (args_has(args, ARG_JSON))
		return document_print(
			json_pack("{s:s, s:o}", "name", args->name, "version",
				  document_number(publication.version)),
			err);
	printf("%s version %" PRIu64 "\n", args->name, publication.version);
	return 0;
}

static int run_put(struct fsdp_client *client, const struct args *args,
		   struct error *err)
{
	const struct tensor_type *raw =
		args->given & RAW_BITS ? &args->type : NULL;
	struct input input = INPUT_NULL;
	struct fsdp_tensor *tensor = NULL;
	struct safetensors_entry entry;
	int r;

	r = input_open(args->operands[0], &input, err);
	if (r < 0)
		return r;
	r = input_find_tensor(&input, raw, &entry, err);
	if (r < 0)
		goto out;
	r = alloc_tensor(client, args, &entry.type, &tensor, err);
	if (r < 0)
		goto out;
	r = fill_tensor(&input, &entry, tensor, args_has(args, ARG_QUIET), err);
	if (r == 0)
		r = publish_tensor(client, args, tensor, err);
out:
	fsdp_free(tensor);
	input_close(&input);
	return r;
}

const struct verb verbs_put[] = {
	{.name = "put",
	 .operands = "FILE",
	 .summary = "publish the tensor of a .npy, .raw or .safetensors file",
	 .accepts = ARG_BIT(ARG_NAME) | RAW_BITS | ARG_BIT(ARG_REPLACE) |
		    ARG_BIT(ARG_DEVICE) | ARG_BIT(ARG_TTL) | ARG_BIT(ARG_MODE) |
		    ARG_BIT(ARG_GROUP) | ARG_BIT(ARG_EVICTABLE) |
		    ARG_BIT(ARG_TIMEOUT) | ARG_BIT(ARG_QUIET) |
		    ARG_BIT(ARG_JSON),
	 .n_min = 1,
	 .n_max = 1,
	 .check = check_put,
	 .run = run_put},
	{0}};
