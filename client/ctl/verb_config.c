/* config and reload: the broker's configuration. */
#include "client/ctl/args.h"
#include "client/ctl/broker.h"
#include "client/ctl/format.h"
#include "client/ctl/sheet.h"
#include "client/ctl/verb.h"
#include "client/fsdp.h"
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AT(member) .offset = offsetof(struct fsdp_config_entry, member)

/* Returns "name (number)" for the number of a group, or the number. */
static const char *name_group(const char *number, char buffer[COLUMN_BUFFER])
{
	const struct group *group = getgrgid((gid_t)strtoul(number, NULL, 10));

	if (!group)
		return number;
	snprintf(buffer, COLUMN_BUFFER, "%s (%s)", group->gr_name, number);
	return buffer;
}

static const char *name_user(const char *number, char buffer[COLUMN_BUFFER])
{
	char name[FORMAT_SIZE];

	format_user((uint32_t)strtoul(number, NULL, 10), name);
	if (strcmp(name, number) == 0)
		return number;
	snprintf(buffer, COLUMN_BUFFER, "%s (%s)", name, number);
	return buffer;
}

/* The broker has the numbers of users and groups. */
static const char *text_value(const void *row, char buffer[COLUMN_BUFFER])
{
	const struct fsdp_config_entry *entry = row;

	if (strcmp(entry->section, "prefixes") == 0)
		return name_user(entry->value, buffer);
	if (!*entry->value)
		return "none";
	if (strcmp(entry->name, "admin_group") == 0)
		return name_group(entry->value, buffer);
	return entry->value;
}

static const struct column columns[] = {
	{"SECTION", "section", COLUMN_TEXT, AT(section)},
	{"KEY", "key", COLUMN_TEXT, AT(name)},
	{"VALUE", .text = text_value},
	{NULL, "value", COLUMN_TEXT, AT(value)},
	{"FROM", "origin", COLUMN_TEXT, AT(origin)},
	{0}};

SHEET_RUN(run_config, fsdp_config, struct fsdp_config_entry, columns)

static int run_reload(struct fsdp_client *client, const struct args *args,
		      struct error *err)
{
	char report[FSDP_RELOAD_REPORT_SIZE];
	int r = fsdp_reload(client, report, sizeof(report));

	(void)args;
	if (r < 0)
		return broker_failed(err, r);
	puts(report);
	return 0;
}

const struct verb verbs_config[] = {
	{.name = "config",
	 .operands = "",
	 .summary =
		 "list the values of the configuration, each with its origin",
	 .accepts = ARG_BIT(ARG_JSON),
	 .run = run_config},
	{.name = "reload",
	 .operands = "",
	 .summary = "make the broker read its configuration again",
	 .run = run_reload},
	{0}};
