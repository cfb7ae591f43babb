/* ls and stat: show what is published. */
#include "client/ctl/args.h"
#include "client/ctl/broker.h"
#include "client/ctl/bundles.h"
#include "client/ctl/document.h"
#include "client/ctl/format.h"
#include "client/ctl/listing.h"
#include "client/ctl/metadata.h"
#include "client/ctl/sheet.h"
#include "client/ctl/verb.h"
#include "proto/error.h"
#include "proto/name.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* --- ls ------------------------------------------------------------------ */

static int print_bundles(const struct listing *listing, const struct args *args,
			 struct error *err)
{
	struct bundles bundles = BUNDLES_NULL;
	struct sheet sheet;
	int r = bundles_collect(
		listing, args->n_operands ? args->operands[0] : NULL, &bundles);

	bundles_sort(&bundles, args->sort);
	sheet_init(&sheet, bundles_columns, args);
	for (size_t i = 0; r == 0 && i < bundles.n; i++)
		r = sheet_add(&sheet, &bundles.list[i]);
	bundles_deinit(&bundles);
	return sheet_finish(&sheet, r, err);
}

static int list_bundles(struct fsdp_client *client, const char *prefix,
			const struct args *args, struct error *err)
{
	struct listing listing = LISTING_NULL;
	int r = fsdp_list(client, prefix, listing_add, &listing);

	if (r < 0)
		r = broker_walk_failed(err, r);
	else
		r = print_bundles(&listing, args, err);
	listing_deinit(&listing);
	return r;
}

/* Each tensor becomes a row when it arrives, while the broker prepares the next
 * ones. */
struct tensors {
	struct sheet sheet;
	enum args_sort sort;
	uint64_t n, size;
};

static uint64_t sort_key(const struct fsdp_entry *entry, enum args_sort sort)
{
	switch (sort) {
	case SORT_BYTES:
		return entry->info->size;
	case SORT_AGE:
		return entry->age_ms;
	case SORT_HOLDERS:
		return entry->n_holders;
	case SORT_NAME:
	case SORT_N:
		break;
	}
	return 0;
}

static int add_tensor(const struct fsdp_entry *entry, void *data)
{
	struct tensors *tensors = data;
	const struct listed listed = {.info = *entry->info, .entry = *entry};

	tensors->n++;
	tensors->size += entry->info->size;
	return sheet_add_by(&tensors->sheet, sort_key(entry, tensors->sort),
			    &listed);
}

static void print_total(const struct tensors *tensors)
{
	char size[FORMAT_SIZE], count[FORMAT_SIZE];

	printf("\ntotal: %s, %s\n", format_count(tensors->n, "tensor", count),
	       format_size(tensors->size, size));
}

static int list_tensors(struct fsdp_client *client, const char *prefix,
			const struct args *args, struct error *err)
{
	struct tensors tensors = {.sort = args->sort};
	int r;

	sheet_init(&tensors.sheet, listing_columns, args);
	r = fsdp_list(client, prefix, add_tensor, &tensors);
	r = sheet_finish(&tensors.sheet, r, err);
	if (r == 0 && !args_has(args, ARG_JSON))
		print_total(&tensors);
	return r;
}

static int run_ls(struct fsdp_client *client, const struct args *args,
		  struct error *err)
{
	const char *prefix = args->n_operands ? args->operands[0] : NULL;

	return args_has(args, ARG_BUNDLES)
		       ? list_bundles(client, prefix, args, err)
		       : list_tensors(client, prefix, args, err);
}

/* --- stat of a tensor ---------------------------------------------------- */

/* Waits for a name by holding the tensor for a moment, because only a get can
 * wait. */
static int wait_for(struct fsdp_client *client, const char *name,
		    int32_t timeout_ms, struct error *err)
{
	struct fsdp_get_options options = {.timeout_ms = timeout_ms};
	struct fsdp_tensor *tensor;
	int r = fsdp_get(client, &name, 1, &options, &tensor);

	if (r < 0)
		return broker_failed(err, r);
	r = fsdp_release_sync(client, &tensor, 1);
	if (r < 0)
		r = broker_failed(err, r);
	fsdp_free(tensor);
	return r;
}

static void print_size(const char *what, uint64_t size)
{
	char text[FORMAT_SIZE];

	printf("%-10s %" PRIu64 " (%s)", what, size, format_size(size, text));
}

static void print_shared(const struct fsdp_entry *entry)
{
	if (!entry->shared)
		return;
	printf("shared     %s: %s\n", format_shared(entry->shared),
	       entry->shared == FSDP_SHARED_LEGACY
		       ? "the memory ends with the process that made it"
		       : "a process made the memory, the broker keeps it");
}

/* Prints the block of the tensor. A tensor keeps all of its block, which can be
 * much larger than the tensor. */
static void print_block(const struct fsdp_entry *entry)
{
	print_size("block", entry->block_size);
	if (entry->n_in_block > 1)
		printf(", shared by %u tensors", entry->n_in_block);
	if (entry->maker_pid)
		printf(", allocated by pid %u\n", entry->maker_pid);
	else
		puts(", allocated by a process that has exited"
		     " or is another user's");
	if (entry->n_tickets)
		printf("tickets    %u\n", entry->n_tickets);
}

static void print_access(const struct fsdp_entry *entry)
{
	char user[FORMAT_SIZE];

	printf("owner      %s (uid %u), gid %u, mode %04o\n",
	       format_user(entry->uid, user), entry->uid, entry->gid,
	       entry->mode);
}

static void print_times(const struct fsdp_entry *entry)
{
	char age[FORMAT_SIZE];

	printf("age        %s\n", format_age(entry->age_ms, age));
	if (entry->ttl_left_ms)
		printf("ends in    %s\n", format_age(entry->ttl_left_ms, age));
}

static void print_flags(const struct fsdp_entry *entry)
{
	if (entry->flags & FSDP_EVICTABLE)
		puts("evictable  the broker may drop it when it needs room");
	if (entry->flags & FSDP_TIED)
		puts("tied       its name ends with the session that made it");
}

static void print_tensor(const struct listed *listed)
{
	const struct fsdp_entry *entry = &listed->entry;
	const struct fsdp_info *info = &listed->info;
	char buffer[FORMAT_SHAPE], device[FSDP_DEVICE_TEXT];

	fsdp_device_format(&info->device, device);
	printf("name       %s\n", info->name);
	if (entry->bundle)
		printf("bundle     %.*s\n", (int)entry->bundle_name_size,
		       info->name);
	printf("version    %" PRIu64 "\n", info->version);
	printf("dtype      %s\n", fsdp_dtype_name(info->dtype));
	printf("shape      %s\n",
	       format_shape(info->shape, info->n_dims, buffer));
	printf("strides    %s\n",
	       format_shape(info->strides, info->n_dims, buffer));
	print_size("bytes", info->size);
	putchar('\n');
	print_block(entry);
	printf("device     %s\n", device);
	print_shared(entry);
	print_access(entry);
	printf("slot       %u, generation %" PRIu64 "\n", info->slot,
	       info->generation);
	printf("holders    %u\n", entry->n_holders);
	print_times(entry);
	print_flags(entry);
	if (info->is_tainted)
		puts("tainted    its writer died before the device had "
		     "finished");
}

static int stat_tensor(struct fsdp_client *client, const struct args *args,
		       struct error *err)
{
	const char *name = args->operands[0];
	struct listing listing = LISTING_NULL;
	int r = 0;

	if (args->timeout_ms)
		r = wait_for(client, name, args->timeout_ms, err);
	if (r == 0)
		r = listing_find(client, name, &listing, err);
	if (r < 0)
		return r;
	if (args_has(args, ARG_JSON))
		r = document_print(
			sheet_object(listing_columns, &listing.entries[0]),
			err);
	else
		print_tensor(&listing.entries[0]);
	listing_deinit(&listing);
	return r;
}

/* --- stat of a bundle ---------------------------------------------------- */

static void print_bundle(const struct bundle *bundle, json_t *metadata)
{
	char device[FSDP_DEVICE_TEXT];
	const char *key;
	json_t *value;

	fsdp_device_format(&bundle->member.info.device, device);
	printf("name       %s\n", bundle->name);
	printf("version    %" PRIu64 "\n", bundle->member.info.version);
	printf("tensors    %" PRIu64 ", of which %" PRIu64 " are held\n",
	       bundle->n_tensors, bundle->n_held);
	print_size("bytes", bundle->size);
	putchar('\n');
	printf("device     %s\n", device);
	print_access(&bundle->member.entry);
	print_times(&bundle->member.entry);
	print_flags(&bundle->member.entry);
	json_object_foreach(metadata, key, value)
	{
		char *line = NULL;

		if (asprintf(&line, "metadata   %s: %s", key,
			     json_string_value(value)) < 0)
			return;
		table_clean(line);
		puts(line);
		free(line);
	}
}

static json_t *bundle_document(const struct bundle *bundle, json_t *metadata)
{
	json_t *object = sheet_object(bundles_columns, bundle);

	if (json_object_set(object, "metadata", metadata)) {
		json_decref(object);
		return NULL;
	}
	return object;
}

static int stat_bundle(struct fsdp_client *client, const struct args *args,
		       struct error *err)
{
	struct listing members = LISTING_NULL;
	struct bundles bundles = BUNDLES_NULL;
	json_t *metadata = NULL;
	int r = bundles_find(client, args->operands[0], false, &members,
			     &bundles, err);

	if (r < 0)
		return r;
	r = metadata_get(client, bundles.list[0].name, &metadata, err);
	if (r < 0)
		goto out;
	if (args_has(args, ARG_JSON))
		r = document_print(bundle_document(&bundles.list[0], metadata),
				   err);
	else
		print_bundle(&bundles.list[0], metadata);
out:
	json_decref(metadata);
	bundles_deinit(&bundles);
	listing_deinit(&members);
	return r;
}

static int check_stat(const struct args *args, struct error *err)
{
	const char *name = args->operands[0];

	if (!name_is_bundle(name))
		return name_check(name, err);
	if (args_has(args, ARG_TIMEOUT))
		return error_set(
			err, -EINVAL,
			"stat cannot wait for a bundle; leave --timeout out");
	return name_check_bundle(name, err);
}

static int run_stat(struct fsdp_client *client, const struct args *args,
		    struct error *err)
{
	return name_is_bundle(args->operands[0])
		       ? stat_bundle(client, args, err)
		       : stat_tensor(client, args, err);
}

const struct verb verbs_list[] = {
	{.name = "ls",
	 .operands = "[PREFIX]",
	 .summary = "list the published tensors, or bundles",
	 .accepts = ARG_BIT(ARG_JSON) | ARG_BIT(ARG_LONG) | ARG_BIT(ARG_SORT) |
		    ARG_BIT(ARG_BUNDLES),
	 .n_max = 1,
	 .run = run_ls},
	{.name = "stat",
	 .operands = "NAME",
	 .summary = "show everything about a tensor or a bundle",
	 .accepts = ARG_BIT(ARG_JSON) | ARG_BIT(ARG_TIMEOUT),
	 .n_min = 1,
	 .n_max = 1,
	 .check = check_stat,
	 .run = run_stat},
	{0}};
