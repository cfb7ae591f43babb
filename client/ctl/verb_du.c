/*
 * du: how much memory each user, process, bundle or prefix uses.
 *
 * Memory is allocated in blocks, and a block lives until its last tensor is
 * freed. So du counts blocks, each of them once. A block with a published
 * tensor counts under its name.
 */
#include "client/ctl/args.h"
#include "client/ctl/broker.h"
#include "client/ctl/document.h"
#include "client/ctl/format.h"
#include "client/ctl/listing.h"
#include "client/ctl/sheet.h"
#include "client/ctl/verb.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Why a block exists. The first reason that applies is shown. */
enum reason { PUBLISHED, WRITING, COLLECTIVE, TICKETS, LIMBO, N_REASONS };

/* One row. */
struct usage {
	char *key;
	/* command of the process, if it is connected; else "" */
	char command[32];
	uint64_t size, sizes[N_REASONS];
	uint64_t device_size; /* the part of `size` on devices */
	uint64_t n_blocks, n_tensors;
};

struct usages {
	struct usage *list;
	size_t n;
	struct usage total; /* its key is NULL */
	/* memory of communicators, which is not in blocks */
	uint64_t board_size;
};

/* --- blocks -------------------------------------------------------------- */

static enum reason reason_of(const struct listed *listed)
{
	const struct fsdp_entry *entry = &listed->entry;

	if (entry->state == FSDP_STATE_PUBLISHED)
		return PUBLISHED;
	if (entry->state == FSDP_STATE_WRITING)
		return WRITING;
	if (entry->is_collective)
		return COLLECTIVE;
	return entry->n_tickets ? TICKETS : LIMBO;
}

static int compare(const void *a, const void *b)
{
	const struct listed *x = a, *y = b;
	enum reason x_reason = reason_of(x), y_reason = reason_of(y);

	if (x->entry.block != y->entry.block)
		return x->entry.block < y->entry.block ? -1 : 1;
	if (x_reason != y_reason)
		return x_reason < y_reason ? -1 : 1;
	return strcmp(x->info.name, y->info.name);
}

static bool is_on_device(const struct listed *listed)
{
	static const struct fsdp_device host;

	return memcmp(&listed->info.device, &host, sizeof(host)) != 0;
}

/* Makes the key of the row to which the block of this tensor belongs, or "" if
 * it belongs to none of that kind. */
static int make_key(const struct listed *listed, enum args_by by, char **ret)
{
	const struct fsdp_entry *entry = &listed->entry;
	const char *name = listed->info.name;
	const char *slash = strchr(name, '/');
	int r = 0;

	switch (by) {
	case BY_UID:
		r = asprintf(ret, "%u", entry->payer_uid);
		break;
	case BY_PROCESS:
		r = entry->maker_pid ? asprintf(ret, "%u", entry->maker_pid)
				     : asprintf(ret, "%s", "");
		break;
	case BY_BUNDLE:
		r = asprintf(ret, "%.*s", (int)entry->bundle_name_size, name);
		break;
	case BY_PREFIX:
	case BY_N:
		r = slash ? asprintf(ret, "%.*s", (int)(slash + 1 - name), name)
			  : asprintf(ret, "%s", name);
		break;
	}
	return r < 0 ? -ENOMEM : 0;
}

/* --- adding up ----------------------------------------------------------- */

/* Consumes `key`, also on failure. */
static struct usage *find_usage(struct usages *usages, char *key)
{
	struct usage *list;

	for (size_t i = 0; i < usages->n; i++) {
		if (strcmp(usages->list[i].key, key) == 0) {
			free(key);
			return &usages->list[i];
		}
	}
	list = reallocarray(usages->list, usages->n + 1, sizeof(*list));
	if (!list) {
		free(key);
		return NULL;
	}
	usages->list = list;
	list[usages->n] = (struct usage){.key = key};
	return &list[usages->n++];
}

static void add_block(struct usage *usage, const struct listed *first,
		      size_t n_tensors)
{
	usage->size += first->entry.block_size;
	usage->sizes[reason_of(first)] += first->entry.block_size;
	if (is_on_device(first))
		usage->device_size += first->entry.block_size;
	usage->n_blocks++;
	usage->n_tensors += n_tensors;
}

/* In the sorted `listing` the tensors of a block follow one another. Memory of
 * legacy IPC is skipped, because the process that shares it owns it. */
static int add_blocks(struct usages *usages, const struct listing *listing,
		      enum args_by by)
{
	size_t n;

	for (size_t i = 0; i < listing->n_entries; i += n) {
		const struct listed *first = &listing->entries[i];
		struct usage *usage;
		char *key;

		for (n = 1; i + n < listing->n_entries &&
			    first[n].entry.block == first->entry.block;
		     n++)
			;
		if (first->entry.shared == FSDP_SHARED_LEGACY)
			continue;
		if (make_key(first, by, &key) < 0)
			return -ENOMEM;
		usage = find_usage(usages, key);
		if (!usage)
			return -ENOMEM;
		add_block(usage, first, n);
		add_block(&usages->total, first, n);
	}
	return 0;
}

static int compare_usages(const void *a, const void *b)
{
	const struct usage *x = a, *y = b;

	if (x->size != y->size)
		return x->size > y->size ? -1 : 1;
	return strcmp(x->key, y->key);
}

static int collect(struct fsdp_client *client, enum args_by by,
		   struct usages *usages)
{
	struct listing listing = LISTING_NULL;
	int r = fsdp_list_all(client, listing_add, &listing);

	if (r == 0 && listing.n_entries) {
		qsort(listing.entries, listing.n_entries,
		      sizeof(*listing.entries), compare);
		r = add_blocks(usages, &listing, by);
	}
	if (usages->n)
		qsort(usages->list, usages->n, sizeof(*usages->list),
		      compare_usages);
	listing_deinit(&listing);
	return r;
}

/* Notes the command of a process that is still connected. */
static int note_command(const struct fsdp_peer *peer, void *data)
{
	struct usages *usages = data;

	for (size_t i = 0; i < usages->n; i++) {
		struct usage *usage = &usages->list[i];

		if (strtoul(usage->key, NULL, 10) == peer->pid)
			snprintf(usage->command, sizeof(usage->command), "%s",
				 peer->command);
	}
	return 0;
}

static int note_boards(const char *name, uint64_t value, void *data)
{
	struct usages *usages = data;

	if (strcmp(name, "board_bytes") == 0)
		usages->board_size = value;
	return 0;
}

/* --- showing ------------------------------------------------------------- */

static const char *text_uid(const void *field, char buffer[COLUMN_BUFFER])
{
	const struct usage *usage = field;

	return format_user((uint32_t)strtoul(usage->key, NULL, 10), buffer);
}

static const char *text_key(const void *field, char buffer[COLUMN_BUFFER])
{
	const struct usage *usage = field;

	(void)buffer;
	return *usage->key ? usage->key : "-";
}

static const char *text_process(const void *field, char buffer[COLUMN_BUFFER])
{
	const struct usage *usage = field;

	if (!*usage->command)
		return text_key(field, buffer);
	snprintf(buffer, COLUMN_BUFFER, "%s (%s)", usage->key, usage->command);
	return buffer;
}

#define AT(member) .offset = offsetof(struct usage, member)
#define COLUMNS(key_title, key_text)                                           \
	{                                                                      \
		{key_title, .text = key_text},                                 \
			{NULL, "key", COLUMN_TEXT, AT(key)},                   \
			{">ALLOCATED", "bytes", COLUMN_SIZE, AT(size)},        \
			{">PUBLISHED", "published_bytes", COLUMN_SIZE,         \
			 AT(sizes[PUBLISHED])},                                \
			{">WRITING", "writing_bytes", COLUMN_SIZE,             \
			 AT(sizes[WRITING])},                                  \
			{">COLLECTIVE", "collective_bytes", COLUMN_SIZE,       \
			 AT(sizes[COLLECTIVE])},                               \
			{">TICKETS", "ticket_bytes", COLUMN_SIZE,              \
			 AT(sizes[TICKETS])},                                  \
			{">LIMBO", "limbo_bytes", COLUMN_SIZE,                 \
			 AT(sizes[LIMBO])},                                    \
			{">ON GPUS", "device_bytes", COLUMN_SIZE,              \
			 AT(device_size)},                                     \
			{">BLOCKS", "blocks", COLUMN_U64, AT(n_blocks)},       \
			{">TENSORS", "tensors", COLUMN_U64, AT(n_tensors)},    \
		{                                                              \
			0                                                      \
		}                                                              \
	}

static const struct column columns[BY_N][12] = {
	[BY_UID] = COLUMNS("USER", text_uid),
	[BY_PROCESS] = COLUMNS("PROCESS", text_process),
	[BY_BUNDLE] = COLUMNS("BUNDLE", text_key),
	[BY_PREFIX] = COLUMNS("PREFIX", text_key),
};

static int print(struct sheet *sheet, const struct usages *usages,
		 struct error *err)
{
	char size[FORMAT_SIZE], blocks[FORMAT_SIZE];
	int r = 0;

	for (size_t i = 0; r == 0 && i < usages->n; i++)
		r = sheet_add(sheet, &usages->list[i]);
	if (r < 0)
		return broker_walk_failed(err, r);
	if (sheet->is_json)
		return document_print(
			json_pack("{s:O, s:o, s:o, s:o}", "rows", sheet->array,
				  "bytes", document_number(usages->total.size),
				  "device_bytes",
				  document_number(usages->total.device_size),
				  "board_bytes",
				  document_number(usages->board_size)),
			err);
	r = sheet_print(sheet, err);
	printf("\ntotal: %s in %s\n", format_size(usages->total.size, size),
	       format_count(usages->total.n_blocks, "block", blocks));
	if (usages->board_size)
		printf("%s more are charged for boards, by which ranks "
		       "work together\n",
		       format_size(usages->board_size, size));
	return r;
}

static int run_du(struct fsdp_client *client, const struct args *args,
		  struct error *err)
{
	struct usages usages = {0};
	struct sheet sheet;
	int r;

	sheet_init(&sheet, columns[args->by], args);
	r = collect(client, args->by, &usages);
	if (r == 0 && args->by == BY_PROCESS)
		r = fsdp_clients(client, note_command, &usages);
	if (r == 0)
		r = fsdp_status(client, note_boards, &usages, NULL);
	r = r < 0 ? broker_walk_failed(err, r) : print(&sheet, &usages, err);
	sheet_deinit(&sheet);
	for (size_t i = 0; i < usages.n; i++)
		free(usages.list[i].key);
	free(usages.list);
	return r;
}

const struct verb verbs_du[] = {
	{.name = "du",
	 .operands = "",
	 .summary =
		 "show how much memory is allocated, by user or by another key",
	 .accepts = ARG_BIT(ARG_JSON) | ARG_BIT(ARG_BY),
	 .run = run_du},
	{0}};
