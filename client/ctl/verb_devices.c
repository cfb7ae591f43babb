/* devices: the GPUs of this node, and what the broker has on them. */
#include "client/ctl/args.h"
#include "client/ctl/broker.h"
#include "client/ctl/document.h"
#include "client/ctl/format.h"
#include "client/ctl/table.h"
#include "client/ctl/verb.h"
#include "client/fsdp.h"
#include "proto/error.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What the broker says, by the names of its status. */
struct counters {
	struct counter {
		char *name; /* owned */
		uint64_t value;
	} * list;
	size_t n;
};

static int keep_counter(const char *name, uint64_t value, void *data)
{
	struct counters *counters = data;
	struct counter *list =
		reallocarray(counters->list, counters->n + 1, sizeof(*list));

	if (!list)
		return -ENOMEM;
	counters->list = list;
	list[counters->n] = (struct counter){strdup(name), value};
	return list[counters->n++].name ? 0 : -ENOMEM;
}

/* 0 if it says nothing of it. */
static uint64_t find_counter(const struct counters *counters, const char *name)
{
	for (size_t i = 0; i < counters->n; i++)
		if (strcmp(counters->list[i].name, name) == 0)
			return counters->list[i].value;
	return 0;
}

static void free_counters(struct counters *counters)
{
	for (size_t i = 0; i < counters->n; i++)
		free(counters->list[i].name);
	free(counters->list);
}

/* What a row is made of; only one of the two is there. */
struct sheet {
	const struct counters *counters;
	struct table *table;
	json_t *array;
};

struct row {
	char device[FSDP_DEVICE_TEXT];
	uint64_t used, max; /* by the broker: bytes */
};

static struct row make_row(const struct sheet *sheet,
			   const struct fsdp_device_entry *entry)
{
	char name[FSDP_DEVICE_TEXT + 16];
	struct row row;

	fsdp_device_format(&entry->device, row.device);
	snprintf(name, sizeof(name), "%s_chunk_bytes", row.device);
	row.used = find_counter(sheet->counters, name);
	snprintf(name, sizeof(name), "%s_memory_max", row.device);
	row.max = find_counter(sheet->counters, name);
	return row;
}

static int add_row(const struct fsdp_device_entry *entry, void *data)
{
	const struct sheet *sheet = data;
	const struct row row = make_row(sheet, entry);
	char size[FORMAT_SIZE], used[FORMAT_SIZE], max[FORMAT_SIZE];
	int r = table_add(sheet->table, NULL, "%s", row.device);

	if (r == 0)
		r = table_add(sheet->table, NULL, "%d", entry->ordinal);
	if (r == 0)
		r = table_add(sheet->table, NULL, "%s", entry->name);
	if (r == 0)
		r = table_add(sheet->table, NULL, "%s",
			      format_size(entry->size, size));
	if (r == 0)
		r = table_add(sheet->table, NULL, "%s",
			      format_size(row.used, used));
	if (r == 0)
		r = table_add(sheet->table, NULL, "%s",
			      format_size(row.max, max));
	if (r == 0)
		r = table_add(sheet->table, NULL, "%s",
			      entry->may_be_shared ? "yes" : "no");
	return r;
}

static int add_document(const struct fsdp_device_entry *entry, void *data)
{
	const struct sheet *sheet = data;
	const struct row row = make_row(sheet, entry);
	json_t *object = json_pack(
		"{s:s, s:i, s:o, s:o, s:o, s:o, s:b, s:b}", "device",
		row.device, "ordinal", (int)entry->ordinal, "name",
		document_text(entry->name), "bytes",
		document_number(entry->size), "used_bytes",
		document_number(row.used), "max_bytes",
		document_number(row.max), "shared", entry->may_be_shared,
		"double", entry->is_test_double);

	return json_array_append_new(sheet->array, object) ? -ENOMEM : 0;
}

static int walk_failed(struct error *err, int code)
{
	if (code == -ENOMEM)
		return error_set(err, code, "out of memory for the answer");
	return broker_failed(err, code);
}

static int print_table(const struct counters *counters, struct error *err)
{
	static const char *const titles[] = {"DEVICE",  ">ORDINAL", "NAME",
					     ">MEMORY", ">USED",    ">MAX",
					     "SHARED"};
	uint64_t version = find_counter(counters, "driver_version");
	struct table table;
	struct sheet sheet = {.counters = counters, .table = &table};
	int r;

	table_init(&table, titles, sizeof(titles) / sizeof(*titles));
	r = fsdp_devices(add_row, &sheet);
	if (r < 0) {
		r = walk_failed(err, r);
		goto out;
	}
	table_print(&table, stdout);
	if (version) /* the broker knows */
		printf("\nCUDA driver %" PRIu64 ".%" PRIu64 "\n",
		       version / 1000, version % 1000 / 10);
out:
	table_deinit(&table);
	return r;
}

static int print_document(const struct counters *counters, struct error *err)
{
	json_t *array = json_array();
	struct sheet sheet = {.counters = counters, .array = array};
	int r = fsdp_devices(add_document, &sheet);

	if (r < 0) {
		json_decref(array);
		return walk_failed(err, r);
	}
	return document_print(
		json_pack("{s:o, s:o}", "devices", array, "driver",
			  document_number(
				  find_counter(counters, "driver_version"))),
		err);
}

static int run_devices(struct fsdp_client *client, const struct args *args,
		       struct error *err)
{
	struct counters counters = {0};
	int r = fsdp_status(client, keep_counter, &counters, NULL);

	if (r < 0)
		r = walk_failed(err, r);
	else if (args_has(args, ARG_JSON))
		r = print_document(&counters, err);
	else
		r = print_table(&counters, err);
	free_counters(&counters);
	return r;
}

const struct verb verbs_devices[] = {
	{.name = "devices",
	 .operands = "",
	 .summary = "list the GPUs, and what the broker has on them",
	 .accepts = ARG_BIT(ARG_JSON),
	 .run = run_devices},
	{0}};
