/* Collects the tensors that the broker lists, and formats their columns. */
#include "client/ctl/listing.h"

#include "client/ctl/broker.h"
#include "client/ctl/document.h"
#include "client/ctl/format.h"
#include "proto/error.h"
#include "proto/name.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- columns ------------------------------------------------------------- */

const char *listing_text_dtype(const void *field, char buffer[COLUMN_BUFFER])
{
	const struct listed *listed = field;

	(void)buffer;
	return fsdp_dtype_name(listed->info.dtype);
}

const char *listing_text_shape(const void *field, char buffer[COLUMN_BUFFER])
{
	const struct listed *listed = field;

	return format_shape(listed->info.shape, listed->info.n_dims, buffer);
}

static json_t *json_shape(const void *field)
{
	const struct listed *listed = field;

	return document_shape(listed->info.shape, listed->info.n_dims);
}

static json_t *json_strides(const void *field)
{
	const struct listed *listed = field;

	return document_shape(listed->info.strides, listed->info.n_dims);
}

const char *listing_text_user(const void *field, char buffer[COLUMN_BUFFER])
{
	return format_user(*(const uint32_t *)field, buffer);
}

const char *listing_text_place(const void *field, char buffer[COLUMN_BUFFER])
{
	return format_place(&((const struct listed *)field)->info,
			    ((const struct listed *)field)->entry.shared,
			    buffer);
}

const char *listing_text_device(const void *field, char buffer[COLUMN_BUFFER])
{
	_Static_assert(FSDP_DEVICE_TEXT <= COLUMN_BUFFER, "a UUID fits");
	fsdp_device_format(field, buffer);
	return buffer;
}

const char *listing_text_name(const void *field, char buffer[COLUMN_BUFFER])
{
	const char *name = *(const char *const *)field;

	(void)buffer;
	return *name ? name : "-";
}

const char *listing_text_pid(const void *field, char buffer[COLUMN_BUFFER])
{
	uint32_t pid = *(const uint32_t *)field;

	if (!pid)
		return "-";
	snprintf(buffer, COLUMN_BUFFER, "%u", pid);
	return buffer;
}

static const char *text_shared(const void *field, char buffer[COLUMN_BUFFER])
{
	(void)buffer;
	return format_shared(*(const enum fsdp_shared *)field);
}

const char *listing_text_mode(const void *field, char buffer[COLUMN_BUFFER])
{
	snprintf(buffer, COLUMN_BUFFER, "%04o", *(const uint32_t *)field);
	return buffer;
}

static const char *text_state(const void *field, char buffer[COLUMN_BUFFER])
{
	static const char *const names[] = {"free", "writing", "published",
					    "limbo"};
	enum fsdp_state state = *(const enum fsdp_state *)field;

	(void)buffer;
	return (size_t)state < sizeof(names) / sizeof(*names) ? names[state]
							      : "unknown";
}

const char *listing_text_end(const void *field, char buffer[COLUMN_BUFFER])
{
	uint64_t ms = *(const uint64_t *)field;

	return ms ? format_age(ms, buffer) : "-";
}

const char *listing_text_comm_state(const void *field,
				    char buffer[COLUMN_BUFFER])
{
	static const char *const names[] = {[FSDP_COMM_KEPT] = "kept",
					    [FSDP_COMM_JOINING] = "joining",
					    [FSDP_COMM_RUNNING] = "running",
					    [FSDP_COMM_FAILED] = "failed"};

	(void)buffer;
	return names[*(const enum fsdp_comm_state *)field];
}

const char *listing_text_slot(const void *field, char buffer[COLUMN_BUFFER])
{
	const struct listed *listed = field;

	snprintf(buffer, COLUMN_BUFFER, "%u:%" PRIu64, listed->info.slot,
		 listed->info.generation);
	return buffer;
}

static const char *text_bundle(const void *field, char buffer[COLUMN_BUFFER])
{
	const struct listed *listed = field;

	_Static_assert(FSDP_MAX_NAME < COLUMN_BUFFER, "a bundle's name fits");
	if (listed->entry.bundle_name_size == 0)
		return "-";
	snprintf(buffer, COLUMN_BUFFER, "%.*s",
		 (int)listed->entry.bundle_name_size, listed->info.name);
	return buffer;
}

static json_t *json_evictable(const void *field)
{
	return json_boolean(*(const uint32_t *)field & FSDP_EVICTABLE);
}

static json_t *json_tied(const void *field)
{
	return json_boolean(*(const uint32_t *)field & FSDP_TIED);
}

static const char *text_digest(const void *field, char buffer[COLUMN_BUFFER])
{
	uint64_t digest = *(const uint64_t *)field;

	if (!digest)
		return "-";
	snprintf(buffer, COLUMN_BUFFER, "%016" PRIx64, digest);
	return buffer;
}

#define AT(member) .offset = offsetof(struct listed, member)

const struct column listing_columns[] = {
	{"NAME", "name", COLUMN_TEXT, AT(info.name)},
	{">VERSION", "version", COLUMN_U64, AT(info.version)},
	{"DTYPE", "dtype", COLUMN_TEXT, .text = listing_text_dtype},
	{"SHAPE", "shape", COLUMN_TEXT, .text = listing_text_shape,
	 .json = json_shape},
	{NULL, "strides", .json = json_strides},
	{">BYTES", "bytes", COLUMN_SIZE, AT(info.size)},
	{">HOLDERS", "holders", COLUMN_U32, AT(entry.n_holders)},
	{">AGE", "age_ms", COLUMN_AGE, AT(entry.age_ms)},
	{"OWNER", "uid", COLUMN_U32, AT(entry.uid), .text = listing_text_user},
	{"DEVICE", .text = listing_text_place},
	{NULL, "device", COLUMN_TEXT, AT(info.device),
	 .text = listing_text_device},
	{"MODE", "mode", COLUMN_TEXT, AT(entry.mode), .text = listing_text_mode,
	 .is_long = true},
	{">GID", "gid", COLUMN_U32, AT(entry.gid), .is_long = true},
	{">ENDS IN", "ttl_left_ms", COLUMN_AGE, AT(entry.ttl_left_ms),
	 .text = listing_text_end, .is_long = true},
	{"SLOT", .text = listing_text_slot, .is_long = true},
	{NULL, "slot", COLUMN_U32, AT(info.slot)},
	{NULL, "generation", COLUMN_U64, AT(info.generation)},
	{">BLOCK", "block_bytes", COLUMN_SIZE, AT(entry.block_size),
	 .is_long = true},
	{NULL, "block", COLUMN_U64, AT(entry.block)},
	{">SHARING", "block_tensors", COLUMN_U32, AT(entry.n_in_block),
	 .is_long = true},
	{">TICKETS", "tickets", COLUMN_U32, AT(entry.n_tickets),
	 .is_long = true},
	{"BUNDLE", "bundle_name", COLUMN_TEXT, .text = text_bundle,
	 .is_long = true},
	{NULL, "bundle", COLUMN_U64, AT(entry.bundle)},
	{NULL, "state", COLUMN_TEXT, AT(entry.state), .text = text_state},
	{NULL, "evictable", AT(entry.flags), .json = json_evictable},
	{NULL, "tied", AT(entry.flags), .json = json_tied},
	{NULL, "shared", COLUMN_TEXT, AT(entry.shared), .text = text_shared},
	{NULL, "tainted", COLUMN_BOOL, AT(info.is_tainted)},
	{"XXH3", "xxh3", COLUMN_TEXT, AT(entry.digest), .text = text_digest,
	 .is_long = true},
	{0}};

/* --- the list ------------------------------------------------------------ */

int listing_add(const struct fsdp_entry *entry, void *data)
{
	struct listing *listing = data;
	struct listed *copy;

	if (listing->n_entries == listing->capacity) {
		size_t capacity =
			listing->capacity ? listing->capacity * 2 : 64;
		struct listed *entries = reallocarray(
			listing->entries, capacity, sizeof(*entries));

		if (!entries)
			return -ENOMEM;
		listing->entries = entries;
		listing->capacity = capacity;
	}
	copy = &listing->entries[listing->n_entries];
	*copy = (struct listed){.info = *entry->info, .entry = *entry};
	copy->entry.info = NULL;
	copy->info.name = strdup(entry->info->name);
	if (!copy->info.name)
		return -ENOMEM;
	listing->n_entries++;
	return 0;
}

static int compare(const void *a, const void *b)
{
	const struct listed *x = a, *y = b;
	int r = strcmp(x->info.name, y->info.name);

	if (r == 0)
		r = x->info.slot < y->info.slot ? -1
						: x->info.slot > y->info.slot;
	return r;
}

void listing_sort(struct listing *listing)
{
	/* Without entries the array is NULL, which qsort() does not accept. */
	if (listing->n_entries)
		qsort(listing->entries, listing->n_entries,
		      sizeof(*listing->entries), compare);
}

void listing_deinit(struct listing *listing)
{
	for (size_t i = 0; i < listing->n_entries; i++)
		free((char *)listing->entries[i].info.name);
	free(listing->entries);
	*listing = LISTING_NULL;
}

/* --- one of them --------------------------------------------------------- */

static int note_below(const struct fsdp_entry *entry, void *data)
{
	*(uint32_t *)data = entry->bundle_name_size;
	return 1;
}

int listing_suggest(struct fsdp_client *client, const char *name, int code,
		    struct error *err)
{
	struct error cause = *err;
	char below[FSDP_MAX_NAME + 2];
	uint32_t bundle = 0;

	if (code != -ENOENT || name_is_bundle(name))
		return code;
	snprintf(below, sizeof(below), "%s/", name);
	if (fsdp_list(client, below, note_below, &bundle) != 1)
		return code;
	if (bundle == strlen(below))
		return error_set(err, code, "%s; did you mean the bundle '%s'?",
				 cause.msg, below);
	return error_set(err, code,
			 "%s; 'fsdpctl ls %s' lists the names below it",
			 cause.msg, below);
}

struct find {
	const char *name;
	struct listing *listing;
};

static int add_if_named(const struct fsdp_entry *entry, void *data)
{
	struct find *find = data;
	int r;

	if (strcmp(entry->info->name, find->name) != 0)
		return 0;
	r = listing_add(entry, find->listing);
	/* 1 ends the walk, because a name belongs to one tensor */
	return r < 0 ? r : 1;
}

int listing_find(struct fsdp_client *client, const char *name,
		 struct listing *ret, struct error *err)
{
	struct listing listing = LISTING_NULL;
	struct find find = {.name = name, .listing = &listing};
	int r = fsdp_list(client, name, add_if_named, &find);

	if (r == 1) {
		*ret = listing;
		return 0;
	}
	listing_deinit(&listing);
	if (r == -ENOMEM)
		return error_nomem(err, "a list");
	if (r < 0)
		return broker_failed(err, r);
	r = error_set(err, -ENOENT, "there is no tensor '%s' that you may read",
		      name);
	return listing_suggest(client, name, r, err);
}
