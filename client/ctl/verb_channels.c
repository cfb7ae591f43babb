/* fsdpctl channels: the users of channels, and which of them wait. */
#include "client/ctl/args.h"
#include "client/ctl/listing.h"
#include "client/ctl/sheet.h"
#include "client/ctl/verb.h"
#include "client/fsdp.h"

#include <inttypes.h>
#include <stdio.h>

static const char *text_mode(const void *field, char buffer[COLUMN_BUFFER])
{
	(void)buffer;
	return *(const uint32_t *)field == FSDP_CHANNEL_BROADCAST ? "broadcast"
								  : "share";
}

static const char *text_depth(const void *field, char buffer[COLUMN_BUFFER])
{
	const struct fsdp_channel_entry *entry = field;

	snprintf(buffer, COLUMN_BUFFER, "%u/%u", entry->n_queued,
		 entry->n_slots);
	return buffer;
}

static const char *text_role(const void *field, char buffer[COLUMN_BUFFER])
{
	(void)buffer;
	return *(const enum fsdp_channel_role *)field == FSDP_PRODUCER
		       ? "producer"
		       : "consumer";
}

/* The mean rate since the user opened the channel. */
static const char *text_rate(const void *field, char buffer[COLUMN_BUFFER])
{
	const struct fsdp_channel_entry *entry = field;

	if (entry->age_ms == 0)
		return "-";
	snprintf(buffer, COLUMN_BUFFER, "%.1f/s",
		 (double)entry->n_items * 1000 / (double)entry->age_ms);
	return buffer;
}

static const char *text_waits(const void *field, char buffer[COLUMN_BUFFER])
{
	const struct fsdp_channel_entry *entry = field;

	if (entry->is_ended)
		return entry->role == FSDP_PRODUCER ? "ended" : "was cut";
	if (!entry->is_waiting)
		return "-";
	snprintf(buffer, COLUMN_BUFFER, "%s, %" PRIu64 " ms",
		 entry->role == FSDP_PRODUCER ? "consumers" : "producers",
		 entry->wait_ms);
	return buffer;
}

static json_t *json_role(const void *field)
{
	char buffer[COLUMN_BUFFER];

	return json_string(text_role(field, buffer));
}

static json_t *json_mode(const void *field)
{
	char buffer[COLUMN_BUFFER];

	return json_string(text_mode(field, buffer));
}

#define AT(member) .offset = offsetof(struct fsdp_channel_entry, member)

static const struct column columns[] = {
	{"CHANNEL", "name", COLUMN_TEXT, AT(name)},
	{"MODE", "mode", COLUMN_U32, AT(mode), .text = text_mode,
	 .json = json_mode},
	{">SLOT SIZE", "capacity", COLUMN_SIZE, AT(capacity)},
	{">QUEUED", .text = text_depth},
	{NULL, "queued", COLUMN_U32, AT(n_queued)},
	{NULL, "slots", COLUMN_U32, AT(n_slots)},
	{"OWNER", "uid", COLUMN_U32, AT(uid), .text = listing_text_user},
	{"ROLE", "role", COLUMN_U32, AT(role), .text = text_role,
	 .json = json_role},
	{">PID", "pid", COLUMN_U32, AT(pid)},
	{"COMMAND", "command", COLUMN_TEXT, AT(command)},
	{">ITEMS", "items", COLUMN_U64, AT(n_items)},
	{">RATE", .text = text_rate},
	{">WAITS", "waits", COLUMN_U64, AT(n_waits)},
	{NULL, "age_ms", COLUMN_AGE, AT(age_ms)},
	{"WAITS FOR", .text = text_waits},
	{NULL, "is_ended", COLUMN_BOOL, AT(is_ended)},
	{NULL, "is_waiting", COLUMN_BOOL, AT(is_waiting)},
	{NULL, "wait_ms", COLUMN_AGE, AT(wait_ms)},
	{0}};

SHEET_RUN(run_channels, fsdp_channels, struct fsdp_channel_entry, columns)

const struct verb verbs_channels[] = {
	{.name = "channels",
	 .operands = "",
	 .summary =
		 "list the processes that use channels, and which of them wait",
	 .accepts = ARG_BIT(ARG_JSON),
	 .run = run_channels},
	{0}};
