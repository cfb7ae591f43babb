/* config and reload: the broker's configuration. */
#include "client/ctl/args.h"
#include "client/ctl/broker.h"
#include "client/ctl/sheet.h"
#include "client/ctl/verb.h"
#include "client/fsdp.h"
#include <stdio.h>

#define AT(member) .offset = offsetof(struct fsdp_config_entry, member)

static const struct column columns[] = {
	{"SECTION", "section", COLUMN_TEXT, AT(section)},
	{"KEY", "key", COLUMN_TEXT, AT(name)},
	{"VALUE", "value", COLUMN_TEXT, AT(value)},
	{"FROM", "origin", COLUMN_TEXT, AT(origin)},
	{0}};

static int add_entry(const struct fsdp_config_entry *entry, void *data)
{
	return sheet_add(data, entry);
}

static int run_config(struct fsdp_client *client, const struct args *args,
		      struct error *err)
{
	struct sheet sheet;

	sheet_init(&sheet, columns, args);
	return sheet_finish(&sheet, fsdp_config(client, add_entry, &sheet),
			    err);
}

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
