/* prefixes: who owns the first components of names. */
#include "client/ctl/args.h"
#include "client/ctl/broker.h"
#include "client/ctl/document.h"
#include "client/ctl/format.h"
#include "client/ctl/table.h"
#include "client/ctl/verb.h"
#include "proto/error.h"

#include <errno.h>
#include <stdio.h>

/* "-" of one that keeps its owner. */
static const char *format_left(const struct fsdp_prefix *prefix,
			       char buffer[FORMAT_SIZE])
{
	return prefix->left_ms ? format_age(prefix->left_ms, buffer) : "-";
}

static int add_prefix(const struct fsdp_prefix *prefix, void *data)
{
	struct table *table = data;
	char left[FORMAT_SIZE];
	int r = table_add(table, NULL, "%s", prefix->name);

	if (r == 0)
		r = table_add(table, NULL, "%u", prefix->uid);
	if (r == 0)
		r = table_add(table, NULL, "%u", prefix->n_names);
	if (r == 0)
		r = table_add(table, NULL, "%u", prefix->n_bundles);
	if (r == 0)
		r = table_add(table, NULL, "%s",
			      prefix->is_configured ? "configured" : "used");
	if (r == 0)
		r = table_add(table, NULL, "%s", format_left(prefix, left));
	return r;
}

static int add_document(const struct fsdp_prefix *prefix, void *data)
{
	json_t *object = json_pack("{s:o, s:I, s:I, s:I, s:b, s:o}", "name",
				   document_text(prefix->name), "uid",
				   (json_int_t)prefix->uid, "names",
				   (json_int_t)prefix->n_names, "bundles",
				   (json_int_t)prefix->n_bundles, "configured",
				   prefix->is_configured, "left_ms",
				   document_number(prefix->left_ms));

	return json_array_append_new(data, object) ? -ENOMEM : 0;
}

static int walked(int r, struct error *err)
{
	if (r == -ENOMEM)
		return error_set(err, r, "out of memory for the answer");
	return r < 0 ? broker_failed(err, r) : 0;
}

static int run_prefixes(struct fsdp_client *client, const struct args *args,
			struct error *err)
{
	static const char *const titles[] = {"PREFIX",   ">UID",  ">NAMES",
					     ">BUNDLES", "OWNED", ">FREE IN"};
	json_t *array = json_array();
	struct table table;
	int r;

	table_init(&table, titles, sizeof(titles) / sizeof(*titles));
	if (args_has(args, ARG_JSON)) {
		r = walked(fsdp_prefixes(client, add_document, array), err);
		if (r == 0)
			r = document_print(json_incref(array), err);
	} else {
		r = walked(fsdp_prefixes(client, add_prefix, &table), err);
		if (r == 0)
			table_print(&table, stdout);
	}
	table_deinit(&table);
	json_decref(array);
	return r;
}

const struct verb verbs_prefixes[] = {
	{.name = "prefixes",
	 .operands = "",
	 .summary = "list the first components of names, and who owns them",
	 .accepts = ARG_BIT(ARG_JSON),
	 .run = run_prefixes},
	{0}};
