/*
 * load: publishes the tensors of safetensors files as one bundle, all or
 * nothing.
 *
 * Other processes see nothing of the bundle before the commit. If this process
 * dies earlier, the broker frees the memory.
 */
#include "client/ctl/args.h"
#include "client/ctl/document.h"
#include "client/ctl/format.h"
#include "client/ctl/interrupt.h"
#include "client/ctl/loader.h"
#include "client/ctl/metadata.h"
#include "client/ctl/model.h"
#include "client/ctl/progress.h"
#include "client/ctl/verb.h"
#include "client/fsdp.h"
#include "proto/error.h"
#include "proto/name.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

struct load {
	const struct args *args;
	struct model model;
	struct loader loader;
	struct progress progress;
};

static int check_load(const struct args *args, struct error *err)
{
	if (!args->prefix)
		return error_set(
			err, -EINVAL,
			"load needs --prefix NAME/, the bundle's name");
	if (args_has(args, ARG_ONCE) && args_has(args, ARG_REPLACE))
		return error_set(
			err, -EINVAL,
			"--once keeps an existing bundle, and --replace "
			"replaces it; give only one of them");
	if (args_has(args, ARG_TIMEOUT) && !args_has(args, ARG_ONCE))
		return error_set(err, -EINVAL,
				 "--timeout needs --once: no other load waits");
	return 0;
}

/* Checks all names before any bytes are moved. */
static int check_names(const char *prefix, const struct model_file *file,
		       struct error *err)
{
	char name[2 * FSDP_MAX_NAME + 2];

	for (size_t i = 0; i < file->safetensors.n_entries; i++) {
		int r;

		snprintf(name, sizeof(name), "%s%s", prefix,
			 file->safetensors.entries[i].name);
		r = name_check(name, err);
		if (r < 0)
			return error_wrap(err, r, "tensor '%s' of %s",
					  file->safetensors.entries[i].name,
					  file->path);
	}
	return 0;
}

static uint64_t size_hint(const struct load *load)
{
	uint64_t size = 0;

	for (size_t f = 0; f < load->model.n_files; f++)
		size += loader_size(&load->model.files[f].safetensors,
				    args_has(load->args, ARG_DEVICE));
	return size;
}

static int open_model(struct load *load, struct error *err)
{
	const struct args *args = load->args;
	int r = model_open(args->operands, args->n_operands, &load->model, err);

	for (size_t i = 0; r == 0 && i < load->model.n_files; i++)
		r = check_names(args->prefix, &load->model.files[i], err);
	return r;
}

static int begin_bundle(struct load *load, struct fsdp_client *client,
			struct error *err)
{
	const struct args *args = load->args;
	struct fsdp_bundle_options options = {
		.struct_size = sizeof(options),
		.access = {.gid = args->gid, .mode = args->mode},
		.size_hint = size_hint(load),
		.flags = (args_has(args, ARG_REPLACE) ? FSDP_REPLACE : 0) |
			 (args_has(args, ARG_ONCE) ? FSDP_ONCE : 0),
		.ttl_ms = args->ttl_ms,
		.device = args->device,
		.timeout_ms =
			args_has(args, ARG_TIMEOUT) ? args->timeout_ms : -1};

	return loader_begin(&load->loader, client, args->prefix, &options,
			    load->model.n_tensors, &load->progress, err);
}

static int load_members(struct load *load, struct error *err)
{
	int r = 0;

	for (size_t f = 0; r == 0 && f < load->model.n_files; f++)
		r = loader_add(&load->loader, &load->model.files[f].input,
			       &load->model.files[f].safetensors, err);
	return r < 0 ? r : loader_wait(&load->loader, err);
}

/* What is reported of a bundle. */
struct loaded {
	uint64_t version, n_tensors, n_bytes;
	double seconds;
	bool is_new; /* false: --once has found it */
};

static int report(const struct load *load, const struct loaded *loaded,
		  struct error *err)
{
	char count[FORMAT_SIZE], size[FORMAT_SIZE], rate[FORMAT_SIZE];
	double seconds = loaded->seconds > 1e-6 ? loaded->seconds : 1e-6;

	if (args_has(load->args, ARG_JSON))
		return document_print(
			json_pack("{s:s, s:o, s:o, s:o, s:f, s:b}", "bundle",
				  load->args->prefix, "version",
				  document_number(loaded->version), "tensors",
				  document_number(loaded->n_tensors), "bytes",
				  document_number(loaded->n_bytes), "seconds",
				  loaded->seconds, "loaded", loaded->is_new),
			err);
	printf("%s version %" PRIu64 "%s: %s, %s", load->args->prefix,
	       loaded->version, loaded->is_new ? "" : " is there",
	       format_count(loaded->n_tensors, "tensor", count),
	       format_size(loaded->n_bytes, size));
	if (loaded->is_new)
		printf(" in %.2f s (%s/s)", loaded->seconds,
		       format_size(
			       (uint64_t)((double)loaded->n_bytes / seconds),
			       rate));
	putchar('\n');
	return 0;
}

/* Reports the bundle that --once has found. -ENOENT means that another name
 * than the bundle's exists; the caller then reports its own error. */
static int report_present(const struct load *load, struct fsdp_client *client)
{
	struct loaded loaded = {.seconds = progress_seconds(&load->progress)};
	struct fsdp_info info = {.struct_size = sizeof(info)};
	struct fsdp_tensor **tensors;
	struct error err = ERROR_NULL;
	size_t n;
	int r = fsdp_bundle_get(client, load->args->prefix, NULL, &tensors, &n);

	if (r < 0)
		return r;
	for (size_t i = 0; r == 0 && i < n; i++) {
		r = fsdp_tensor_info(tensors[i], &info);
		if (r < 0 || metadata_is_name(info.name, load->args->prefix))
			continue;
		loaded.n_tensors++;
		loaded.n_bytes += info.size;
	}
	loaded.version = info.version;
	free(tensors);
	return r < 0 ? r : report(load, &loaded, &err);
}

static int run_begun(struct load *load, struct error *err)
{
	struct loaded loaded = {.n_tensors = load->model.n_tensors,
				.n_bytes = load->model.data_size,
				.is_new = true};
	int r;

	interrupt_catch();
	r = load_members(load, err);
	if (r == 0)
		r = loader_commit(&load->loader, load->model.metadata,
				  &loaded.version, err);
	loaded.seconds = progress_seconds(&load->progress);
	progress_deinit(&load->progress);
	return r < 0 ? r : report(load, &loaded, err);
}

static int run_load(struct fsdp_client *client, const struct args *args,
		    struct error *err)
{
	struct load load = {.args = args, .model = MODEL_NULL};
	int r;

	r = open_model(&load, err);
	if (r < 0)
		goto out;
	progress_init(&load.progress, args->prefix, load.model.data_size,
		      args_has(args, ARG_QUIET));
	r = begin_bundle(&load, client, err);
	if (r == -EEXIST && args_has(args, ARG_ONCE) &&
	    report_present(&load, client) == 0)
		r = 0;
	else if (r == 0)
		r = run_begun(&load, err);
out:
	loader_deinit(&load.loader);
	model_close(&load.model);
	return r;
}

const struct verb verbs_load[] = {
	{.name = "load",
	 .operands = "FILE...",
	 .summary = "publish the tensors of .safetensors files as one "
		    "bundle",
	 .accepts = ARG_BIT(ARG_PREFIX) | ARG_BIT(ARG_REPLACE) |
		    ARG_BIT(ARG_DEVICE) | ARG_BIT(ARG_MODE) |
		    ARG_BIT(ARG_GROUP) | ARG_BIT(ARG_TTL) | ARG_BIT(ARG_QUIET) |
		    ARG_BIT(ARG_JSON) | ARG_BIT(ARG_ONCE) |
		    ARG_BIT(ARG_TIMEOUT),
	 .n_min = 1,
	 .n_max = SIZE_MAX,
	 .check = check_load,
	 .run = run_load},
	{0}};
