/* prefixes: who owns the first components of names. */
#include "client/ctl/args.h"
#include "client/ctl/listing.h"
#include "client/ctl/sheet.h"
#include "client/ctl/verb.h"

static const char *text_owned(const void *field, char buffer[COLUMN_BUFFER])
{
	(void)buffer;
	return *(const bool *)field ? "configured" : "used";
}

#define AT(member) .offset = offsetof(struct fsdp_prefix, member)

static const struct column columns[] = {
	{"PREFIX", "name", COLUMN_TEXT, AT(name)},
	{"OWNER", "uid", COLUMN_U32, AT(uid), .text = listing_text_user},
	{">NAMES", "names", COLUMN_U32, AT(n_names)},
	{">BUNDLES", "bundles", COLUMN_U32, AT(n_bundles)},
	{"OWNED", "configured", COLUMN_BOOL, AT(is_configured),
	 .text = text_owned},
	{">FREE IN", "left_ms", COLUMN_AGE, AT(left_ms),
	 .text = listing_text_end},
	{0}};

static int add_prefix(const struct fsdp_prefix *prefix, void *data)
{
	return sheet_add(data, prefix);
}

static int run_prefixes(struct fsdp_client *client, const struct args *args,
			struct error *err)
{
	struct sheet sheet;

	sheet_init(&sheet, columns, args);
	return sheet_finish(&sheet, fsdp_prefixes(client, add_prefix, &sheet),
			    err);
}

const struct verb verbs_prefixes[] = {
	{.name = "prefixes",
	 .operands = "",
	 .summary = "list the first components of names, and their owners",
	 .accepts = ARG_BIT(ARG_JSON),
	 .run = run_prefixes},
	{0}};
