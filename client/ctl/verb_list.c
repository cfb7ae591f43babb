/* ls and stat: what is published. */
#include "client/ctl/args.h"
#include "client/ctl/broker.h"
#include "client/ctl/document.h"
#include "client/ctl/format.h"
#include "client/ctl/listing.h"
#include "client/ctl/table.h"
#include "client/ctl/verb.h"
#include "proto/error.h"
#include "proto/name.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

static json_t *make_document(const struct listing *listing)
{
	json_t *array = json_array();

	for (size_t i = 0; i < listing->n_entries; i++) {
		if (json_array_append_new(
			    array, document_entry(&listing->entries[i]))) {
			json_decref(array);
			return NULL;
		}
	}
	return array;
}

static int add_row(struct table *table, const struct fsdp_entry *entry,
		   struct error *err)
{
	const struct fsdp_info *info = entry->info;
	char shape[FORMAT_SHAPE], size[FORMAT_SIZE], age[FORMAT_SIZE];
	char place[FORMAT_SIZE];
	const char *cells[] = {fsdp_dtype_name(info->dtype),
			       format_shape(info->shape, info->n_dims, shape),
			       format_size(info->size, size)};
	int r;

	r = table_add(table, err, "%s", info->name);
	if (r == 0)
		r = table_add(table, err, "%" PRIu64, info->version);
	for (size_t i = 0; r == 0 && i < 3; i++)
		r = table_add(table, err, "%s", cells[i]);
	if (r == 0)
		r = table_add(table, err, "%u", entry->n_holders);
	if (r == 0)
		r = table_add(table, err, "%s", format_age(entry->age_ms, age));
	if (r == 0)
		r = table_add(table, err, "%s", format_place(entry, place));
	return r;
}

static int print_table(const struct listing *listing, struct error *err)
{
	static const char *const titles[] = {"NAME",  ">VERSION", "DTYPE",
					     "SHAPE", ">BYTES",   ">HOLDERS",
					     ">AGE",  "DEVICE"};
	struct table table;
	int r = 0;

	table_init(&table, titles, sizeof(titles) / sizeof(*titles));
	for (size_t i = 0; r == 0 && i < listing->n_entries; i++)
		r = add_row(&table, &listing->entries[i], err);
	if (r == 0)
		table_print(&table, stdout);
	table_deinit(&table);
	return r;
}

static int run_ls(struct fsdp_client *client, const struct args *args,
		  struct error *err)
{
	struct listing listing = LISTING_NULL;
	int r = fsdp_list(client, args->n_operands ? args->operands[0] : NULL,
			  listing_add, &listing);

	if (r == -ENOMEM)
		r = error_set(err, r, "out of memory for the list");
	else if (r < 0)
		r = broker_failed(err, r);
	if (r < 0)
		goto out;
	listing_sort(&listing);
	if (args_has(args, ARG_JSON))
		r = document_print(make_document(&listing), err);
	else
		r = print_table(&listing, err);
out:
	listing_deinit(&listing);
	return r;
}

/* Holding it ourselves for a moment is how to wait for a name. */
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

static void print_entry(const struct fsdp_entry *entry)
{
	const struct fsdp_info *info = entry->info;
	char buffer[FORMAT_SHAPE], age[FORMAT_SIZE];
	char device[FSDP_DEVICE_TEXT];

	printf("name       %s\n", info->name);
	printf("version    %" PRIu64 "\n", info->version);
	printf("dtype      %s\n", fsdp_dtype_name(info->dtype));
	printf("shape      %s\n",
	       format_shape(info->shape, info->n_dims, buffer));
	printf("strides    %s\n",
	       format_shape(info->strides, info->n_dims, buffer));
	printf("bytes      %" PRIu64 " (%s)\n", info->size,
	       format_size(info->size, age));
	fsdp_device_format(&info->device, device);
	printf("device     %s\n", device);
	if (entry->shared)
		printf("shared     %s: %s\n", format_shared(entry->shared),
		       entry->shared == FSDP_SHARED_LEGACY
			       ? "the memory ends with the process that made it"
			       : "a process made the memory, the broker keeps "
				 "it");
	if (info->is_tainted)
		puts("tainted    its writer died before the device was done");
	printf("owner      uid %u, gid %u, mode %04o\n", entry->uid, entry->gid,
	       entry->mode);
	printf("slot       %u, generation %" PRIu64 "\n", info->slot,
	       info->generation);
	printf("holders    %u\n", entry->n_holders);
	printf("age        %s\n", format_age(entry->age_ms, age));
	if (entry->ttl_left_ms)
		printf("ends in    %s\n", format_age(entry->ttl_left_ms, age));
	if (entry->bundle)
		printf("bundle     %" PRIu64 "\n", entry->bundle);
	if (entry->flags & (FSDP_EVICTABLE | FSDP_TIED))
		printf("may go     %s%s\n",
		       entry->flags & FSDP_EVICTABLE ? "when room is needed "
						     : "",
		       entry->flags & FSDP_TIED ? "with its session" : "");
}

static int check_stat(const struct args *args, struct error *err)
{
	if (name_is_bundle(args->operands[0]))
		return error_set(err, -EINVAL,
				 "'%.200s' is a prefix, not a tensor: fsdpctl "
				 "ls %.200s",
				 args->operands[0], args->operands[0]);
	return name_check(args->operands[0], err);
}

static int run_stat(struct fsdp_client *client, const struct args *args,
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
		r = document_print(document_entry(&listing.entries[0]), err);
	else
		print_entry(&listing.entries[0]);
	listing_deinit(&listing);
	return r;
}

const struct verb verbs_list[] = {
	{.name = "ls",
	 .operands = "[PREFIX]",
	 .summary = "list the published tensors",
	 .accepts = ARG_BIT(ARG_JSON),
	 .n_max = 1,
	 .run = run_ls},
	{.name = "stat",
	 .operands = "NAME",
	 .summary = "show all there is to know about one tensor",
	 .accepts = ARG_BIT(ARG_JSON) | ARG_BIT(ARG_TIMEOUT),
	 .n_min = 1,
	 .n_max = 1,
	 .check = check_stat,
	 .run = run_stat},
	{0}};
