/* devices: the GPUs of this node, and the memory that the broker uses on
 * them. */
#include "client/ctl/args.h"
#include "client/ctl/broker.h"
#include "client/ctl/counters.h"
#include "client/ctl/document.h"
#include "client/ctl/listing.h"
#include "client/ctl/sheet.h"
#include "client/ctl/verb.h"
#include "client/fsdp.h"

#include <inttypes.h>
#include <stdio.h>

/* The data of one row. */
struct row {
	struct fsdp_device_entry entry;
	uint64_t used, max; /* of the broker, in bytes */
};

struct look {
	const struct counters *counters;
	struct sheet sheet;
};

#define AT(member) .offset = offsetof(struct row, member)

static const struct column columns[] = {
	{"DEVICE", "device", COLUMN_TEXT, AT(entry.device),
	 .text = listing_text_device},
	{">ORDINAL", "ordinal", COLUMN_I32, AT(entry.ordinal)},
	{"NAME", "name", COLUMN_TEXT, AT(entry.name)},
	{">MEMORY", "bytes", COLUMN_SIZE, AT(entry.size)},
	{">USED", "used_bytes", COLUMN_SIZE, AT(used)},
	{">MAX", "max_bytes", COLUMN_SIZE, AT(max)},
	{"SHARED", "shared", COLUMN_BOOL, AT(entry.may_be_shared)},
	{NULL, "fake", COLUMN_BOOL, AT(entry.is_fake)},
	{0}};

static int add_device(const struct fsdp_device_entry *entry, void *data)
{
	struct look *look = data;
	char device[FSDP_DEVICE_TEXT], name[FSDP_DEVICE_TEXT + 16];
	struct row row = {.entry = *entry};

	fsdp_device_format(&entry->device, device);
	snprintf(name, sizeof(name), "%s_chunk_bytes", device);
	row.used = counters_find(look->counters, name);
	snprintf(name, sizeof(name), "%s_memory_max", device);
	row.max = counters_find(look->counters, name);
	return sheet_add(&look->sheet, &row);
}

static int print(struct look *look, struct error *err)
{
	uint64_t version = counters_find(look->counters, "driver_version");
	int r;

	if (look->sheet.is_json)
		return document_print(json_pack("{s:O, s:o}", "devices",
						look->sheet.array, "driver",
						document_number(version)),
				      err);
	r = sheet_print(&look->sheet, err);
	if (version) /* the broker uses a driver */
		printf("\nCUDA driver %" PRIu64 ".%" PRIu64 "\n",
		       version / 1000, version % 1000 / 10);
	return r;
}

static int run_devices(struct fsdp_client *client, const struct args *args,
		       struct error *err)
{
	struct counters counters = COUNTERS_NULL;
	struct look look = {.counters = &counters};
	int r = counters_read(client, &counters, err);

	sheet_init(&look.sheet, columns, args);
	if (r == 0) {
		r = fsdp_devices(add_device, &look);
		if (r < 0)
			broker_walk_failed(err, r);
	}
	if (r == 0)
		r = print(&look, err);
	sheet_deinit(&look.sheet);
	counters_deinit(&counters);
	return r;
}

const struct verb verbs_devices[] = {
	{.name = "devices",
	 .operands = "",
	 .summary =
		 "list the GPUs, and the memory that the broker uses on them",
	 .accepts = ARG_BIT(ARG_JSON),
	 .run = run_devices},
	{0}};
