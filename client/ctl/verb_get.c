/*
 * get: writes a tensor or a whole bundle to a file.
 *
 * The tensors are held while they are written, so the file always has one
 * version, even if the name is replaced meanwhile.
 */
#include "client/ctl/args.h"
#include "client/ctl/broker.h"
#include "client/ctl/cast.h"
#include "client/ctl/contents.h"
#include "client/ctl/listing.h"
#include "client/ctl/metadata.h"
#include "client/ctl/npy.h"
#include "client/ctl/output.h"
#include "client/ctl/safetensors.h"
#include "client/ctl/verb.h"
#include "client/fsdp.h"
#include "proto/error.h"
#include "proto/name.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum format { FORMAT_NONE, FORMAT_RAW, FORMAT_NPY, FORMAT_SAFETENSORS };

/* The tensors, and how to write them. */
struct get {
	const struct args *args;
	enum format format;
	struct fsdp_tensor **tensors;
	size_t n_tensors;
	json_t *metadata; /* owned */
};

static enum format find_format(const char *path)
{
	const char *suffix = strrchr(path, '.');

	if (strcmp(path, "-") == 0)
		return FORMAT_RAW;
	if (!suffix)
		return FORMAT_NONE;
	if (strcmp(suffix, ".raw") == 0)
		return FORMAT_RAW;
	if (strcmp(suffix, ".npy") == 0)
		return FORMAT_NPY;
	if (strcmp(suffix, ".safetensors") == 0)
		return FORMAT_SAFETENSORS;
	return FORMAT_NONE;
}

static int check_get(const struct args *args, struct error *err)
{
	enum format format;

	if (!args->output)
		return error_set(err, -EINVAL,
				 "get needs -o FILE.npy, FILE.safetensors, "
				 "FILE.raw, or - for standard output");
	format = find_format(args->output);
	if (format == FORMAT_NONE)
		return error_set(err, -EINVAL,
				 "'%s' must end in .npy, .safetensors or .raw",
				 args->output);
	if (!name_is_bundle(args->operands[0]))
		return name_check(args->operands[0], err);
	if (format != FORMAT_SAFETENSORS)
		return error_set(err, -EINVAL,
				 "a bundle can only be stored as .safetensors");
	return name_check_bundle(args->operands[0], err);
}

/* Finds the type that the tensor has in the file. */
static int find_file_type(const struct get *get,
			  const struct fsdp_tensor *tensor,
			  struct tensor_type *type, struct error *err)
{
	struct fsdp_info info = {.struct_size = sizeof(info)};

	contents_type(tensor, type);
	if (get->args->cast) {
		fsdp_tensor_info(tensor, &info);
		if (!cast_is_known(type->dtype))
			return error_set(err, -ENOTSUP,
					 "cannot cast '%s' to f32: it is %s, "
					 "and only f32, f16, bf16 and 8-bit "
					 "floats are cast exactly; get it "
					 "without --cast",
					 info.name, dtype_name(type->dtype));
		type->dtype = get->args->cast;
	}
	tensor_type_contiguous(type);
	return 0;
}

static int write_npy_header(const struct get *get, struct output *output,
			    struct error *err)
{
	char header[NPY_HEADER_SIZE];
	struct tensor_type type;
	int r = find_file_type(get, get->tensors[0], &type, err);

	if (r < 0)
		return r;
	if (!npy_holds(type.dtype))
		return error_set(err, -ENOTSUP,
				 ".npy cannot hold %s: use --cast f32, or a "
				 ".safetensors or .raw file",
				 dtype_name(type.dtype));
	return output_write(output, header, npy_make_header(&type, header),
			    err);
}

static int write_safetensors_header(const struct get *get,
				    struct output *output, struct error *err)
{
	const char *bundle = get->args->operands[0];
	/* In the file members have the names that they had before load added
	 * the bundle's name. */
	size_t skip = name_is_bundle(bundle) ? strlen(bundle) : 0;
	struct safetensors_item *items;
	char *header = NULL;
	size_t size;
	int r = 0;

	items = calloc(get->n_tensors, sizeof(*items));
	if (!items)
		return error_nomem(err, "the header");
	for (size_t i = 0; r == 0 && i < get->n_tensors; i++) {
		struct fsdp_info info = {.struct_size = sizeof(info)};

		fsdp_tensor_info(get->tensors[i], &info);
		items[i].name = skip ? info.name + skip : bundle;
		r = find_file_type(get, get->tensors[i], &items[i].type, err);
	}
	if (r == 0)
		r = safetensors_make_header(items, get->n_tensors,
					    get->metadata, &header, &size, err);
	if (r == 0)
		r = output_write(output, header, size, err);
	free(header);
	free(items);
	return r;
}

static int write_header(const struct get *get, struct output *output,
			struct error *err)
{
	struct tensor_type type;

	if (get->format == FORMAT_NPY)
		return write_npy_header(get, output, err);
	if (get->format == FORMAT_SAFETENSORS)
		return write_safetensors_header(get, output, err);
	/* a raw file has no header, but this checks the cast */
	return find_file_type(get, get->tensors[0], &type, err);
}

static int write_file(const struct get *get, struct error *err)
{
	struct output output = OUTPUT_NULL;
	int r;

	r = output_open(get->args->output, &output, err);
	if (r < 0)
		return r;
	r = write_header(get, &output, err);
	for (size_t i = 0; r == 0 && i < get->n_tensors; i++)
		r = contents_write(get->tensors[i], get->args->cast,
				   output_pack, &output, err);
	if (r == 0)
		r = output_commit(&output, err);
	output_close(&output);
	return r;
}

static int run_get(struct fsdp_client *client, const struct args *args,
		   struct error *err)
{
	struct get get = {.args = args, .format = find_format(args->output)};
	struct fsdp_get_options options = {.timeout_ms = args->timeout_ms};
	const char *name = args->operands[0];
	int r = contents_hold(client, name, &options, &get.tensors,
			      &get.n_tensors, err);

	if (r < 0)
		r = listing_suggest(client, name, r, err);
	else
		r = metadata_take(name, get.tensors, &get.n_tensors,
				  &get.metadata, err);
	if (r == 0)
		r = write_file(&get, err);
	for (size_t i = 0; i < get.n_tensors; i++)
		fsdp_free(get.tensors[i]);
	free(get.tensors);
	json_decref(get.metadata);
	return r;
}

const struct verb verbs_get[] = {
	{.name = "get",
	 .operands = "NAME",
	 .summary = "write a tensor, or a bundle, to a file",
	 .accepts =
		 ARG_BIT(ARG_OUTPUT) | ARG_BIT(ARG_CAST) | ARG_BIT(ARG_TIMEOUT),
	 .n_min = 1,
	 .n_max = 1,
	 .check = check_get,
	 .run = run_get},
	{0}};
