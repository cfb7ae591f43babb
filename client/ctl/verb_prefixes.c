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

SHEET_RUN(run_prefixes, fsdp_prefixes, struct fsdp_prefix, columns)

const struct verb verbs_prefixes[] = {
	{.name = "prefixes",
	 .operands = "",
	 .summary = "list the first components of names, and their owners",
	 .accepts = ARG_BIT(ARG_JSON),
	 .run = run_prefixes},
	{0}};
