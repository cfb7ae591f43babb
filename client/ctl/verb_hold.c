/* who, limbo and clients: which process holds what. */
#include "client/ctl/args.h"
#include "client/ctl/broker.h"
#include "client/ctl/document.h"
#include "client/ctl/format.h"
#include "client/ctl/listing.h"
#include "client/ctl/roster.h"
#include "client/ctl/table.h"
#include "client/ctl/verb.h"
#include "proto/error.h"
#include "proto/name.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

static int walk_failed(struct error *err, int code)
{
	if (code == -ENOMEM)
		return error_set(err, code, "out of memory for the answer");
	return broker_failed(err, code);
}

static json_t *roster_document(const struct roster *roster)
{
	json_t *array = json_array();

	for (size_t i = 0; i < roster->n_holders; i++) {
		if (json_array_append_new(
			    array, document_holder(&roster->holders[i]))) {
			json_decref(array);
			return NULL;
		}
	}
	return array;
}

static const char *describe(const struct fsdp_holder *holder)
{
	if (holder->is_writer)
		return "writing";
	return holder->is_connected ? "reading" : "disconnected";
}

static const char *describe_contents(const struct fsdp_holder *holder)
{
	return holder->is_tainted ? ", tainted" : "";
}

static int add_holder(struct table *table, const struct fsdp_holder *holder,
		      struct error *err)
{
	int r = table_add(table, err, "%u", holder->pid);

	if (r == 0)
		r = table_add(table, err, "%s", holder->command);
	if (r == 0)
		r = table_add(table, err, "%u", holder->uid);
	if (r == 0)
		r = table_add(table, err, "%" PRId64, holder->holds);
	if (r == 0)
		r = table_add(table, err, "%s%s", describe(holder),
			      describe_contents(holder));
	return r;
}

static int print_roster(const struct roster *roster, struct error *err)
{
	static const char *const titles[] = {">PID", "COMMAND", ">UID",
					     ">HOLDS", "STATE"};
	struct table table;
	int r = 0;

	table_init(&table, titles, sizeof(titles) / sizeof(*titles));
	for (size_t i = 0; r == 0 && i < roster->n_holders; i++)
		r = add_holder(&table, &roster->holders[i], err);
	if (r == 0)
		table_print(&table, stdout);
	table_deinit(&table);
	return r;
}

static int check_who(const struct args *args, struct error *err)
{
	return name_check(args->operands[0], err);
}

static int run_who(struct fsdp_client *client, const struct args *args,
		   struct error *err)
{
	struct roster roster = ROSTER_NULL;
	int r = fsdp_who(client, args->operands[0], roster_add, &roster);

	if (r < 0)
		r = walk_failed(err, r);
	else if (args_has(args, ARG_JSON))
		r = document_print(roster_document(&roster), err);
	else
		r = print_roster(&roster, err);
	roster_deinit(&roster);
	return r;
}

/*
 * The holders of a listed slot; none if it was freed since. Whoever may see
 * the tensor but not its holders gets the row without them.
 */
static int find_holders(struct fsdp_client *client,
			const struct fsdp_entry *entry, struct roster *roster,
			struct error *err)
{
	int r = fsdp_who_slot(client, entry->info->slot,
			      entry->info->generation, roster_add, roster);

	if (r == -ENOENT || r == -ESTALE || r == -EPERM || r == -EACCES)
		return 0;
	return r < 0 ? walk_failed(err, r) : 0;
}

static int add_limbo_tensor(struct table *table, const struct fsdp_entry *entry,
			    struct error *err)
{
	const struct fsdp_info *info = entry->info;
	char shape[FORMAT_SHAPE], size[FORMAT_SIZE], age[FORMAT_SIZE];
	char place[FORMAT_SIZE];
	const char *cells[] = {*info->name ? info->name : "-",
			       fsdp_dtype_name(info->dtype),
			       format_shape(info->shape, info->n_dims, shape),
			       format_size(info->size, size),
			       format_age(entry->age_ms, age),
			       format_place(entry, place)};
	int r = table_add(table, err, "%u:%" PRIu64, info->slot,
			  info->generation);

	for (size_t i = 0; r == 0 && i < sizeof(cells) / sizeof(*cells); i++)
		r = table_add(table, err, "%s", cells[i]);
	return r;
}

/* One row per holder, so that every row can be read by itself. */
static int add_limbo_rows(struct table *table, const struct fsdp_entry *entry,
			  const struct roster *roster, struct error *err)
{
	int r = 0;

	for (size_t i = 0; r == 0 && i < roster->n_holders; i++) {
		r = add_limbo_tensor(table, entry, err);
		if (r == 0)
			r = add_holder(table, &roster->holders[i], err);
	}
	if (r < 0 || roster->n_holders)
		return r;
	r = add_limbo_tensor(table, entry, err);
	for (size_t i = 0; r == 0 && i < 5; i++)
		r = table_add(table, err, "-");
	return r;
}

static int print_limbo(struct fsdp_client *client,
		       const struct listing *listing, struct error *err)
{
	static const char *const titles[] = {
		"SLOT",   "WAS",  "DTYPE",   "SHAPE", ">BYTES", ">AGE",
		"DEVICE", ">PID", "COMMAND", ">UID",  ">HOLDS", "STATE"};
	struct table table;
	int r = 0;

	table_init(&table, titles, sizeof(titles) / sizeof(*titles));
	for (size_t i = 0; r == 0 && i < listing->n_entries; i++) {
		struct roster roster = ROSTER_NULL;

		r = find_holders(client, &listing->entries[i], &roster, err);
		if (r == 0)
			r = add_limbo_rows(&table, &listing->entries[i],
					   &roster, err);
		roster_deinit(&roster);
	}
	if (r == 0)
		table_print(&table, stdout);
	table_deinit(&table);
	return r;
}

static int print_limbo_document(struct fsdp_client *client,
				const struct listing *listing,
				struct error *err)
{
	json_t *array = json_array();

	for (size_t i = 0; i < listing->n_entries; i++) {
		const struct fsdp_entry *entry = &listing->entries[i];
		struct roster roster = ROSTER_NULL;
		json_t *object;
		int r = find_holders(client, entry, &roster, err);

		if (r < 0) {
			json_decref(array);
			return r;
		}
		object = document_entry(entry);
		(void)json_object_set_new(object, "held_by",
					  roster_document(&roster));
		roster_deinit(&roster);
		if (json_array_append_new(array, object)) {
			json_decref(array);
			return document_print(NULL, err);
		}
	}
	return document_print(array, err);
}

static int run_limbo(struct fsdp_client *client, const struct args *args,
		     struct error *err)
{
	struct listing listing = LISTING_NULL;
	int r = fsdp_limbo(client, listing_add, &listing);

	if (r < 0) {
		r = walk_failed(err, r);
		goto out;
	}
	listing_sort(&listing);
	if (args_has(args, ARG_JSON))
		r = print_limbo_document(client, &listing, err);
	else
		r = print_limbo(client, &listing, err);
out:
	listing_deinit(&listing);
	return r;
}

static int add_client(const struct fsdp_peer *peer, void *data)
{
	struct table *table = data;
	char size[FORMAT_SIZE], age[FORMAT_SIZE];
	int r = table_add(table, NULL, "%" PRIu64, peer->session);

	if (r == 0)
		r = table_add(table, NULL, "%u", peer->pid);
	if (r == 0)
		r = table_add(table, NULL, "%u", peer->uid);
	if (r == 0)
		r = table_add(table, NULL, "%s", peer->command);
	if (r == 0)
		r = table_add(table, NULL, "%s",
			      peer->is_connected ? "yes" : "no");
	if (r == 0)
		r = table_add(table, NULL, "%" PRIu64, peer->n_slots);
	if (r == 0)
		r = table_add(table, NULL, "%s",
			      format_size(peer->n_bytes, size));
	if (r == 0)
		r = table_add(table, NULL, "%" PRIu64, peer->n_requests);
	if (r == 0)
		r = table_add(table, NULL, "%u", peer->n_waiting);
	if (r == 0)
		r = table_add(table, NULL, "%s", format_age(peer->age_ms, age));
	return r;
}

static int add_client_document(const struct fsdp_peer *peer, void *data)
{
	json_t *object = json_pack(
		"{s:o, s:I, s:I, s:o, s:b, s:o, s:o, s:o, s:I, s:o}", "session",
		document_number(peer->session), "pid", (json_int_t)peer->pid,
		"uid", (json_int_t)peer->uid, "command",
		document_text(peer->command), "connected", peer->is_connected,
		"slots", document_number(peer->n_slots), "bytes",
		document_number(peer->n_bytes), "requests",
		document_number(peer->n_requests), "waiting",
		(json_int_t)peer->n_waiting, "age_ms",
		document_number(peer->age_ms));

	return json_array_append_new(data, object) ? -ENOMEM : 0;
}

static int run_clients(struct fsdp_client *client, const struct args *args,
		       struct error *err)
{
	static const char *const titles[] = {
		">SESSION", ">PID",   ">UID",      "COMMAND",  "CONNECTED",
		">SLOTS",   ">BYTES", ">REQUESTS", ">WAITING", ">AGE"};
	json_t *array = json_array();
	struct table table;
	int r;

	table_init(&table, titles, sizeof(titles) / sizeof(*titles));
	if (args_has(args, ARG_JSON))
		r = fsdp_clients(client, add_client_document, array);
	else
		r = fsdp_clients(client, add_client, &table);
	if (r < 0)
		r = walk_failed(err, r);
	else if (args_has(args, ARG_JSON))
		r = document_print(json_incref(array), err);
	else
		table_print(&table, stdout);
	table_deinit(&table);
	json_decref(array);
	return r;
}

const struct verb verbs_hold[] = {
	{.name = "who",
	 .operands = "NAME",
	 .summary = "show which processes hold a tensor",
	 .accepts = ARG_BIT(ARG_JSON),
	 .n_min = 1,
	 .n_max = 1,
	 .check = check_who,
	 .run = run_who},
	{.name = "limbo",
	 .operands = "",
	 .summary = "show what nothing keeps any more, and who holds it",
	 .accepts = ARG_BIT(ARG_JSON),
	 .run = run_limbo},
	{.name = "clients",
	 .operands = "",
	 .summary = "list the connected processes",
	 .accepts = ARG_BIT(ARG_JSON),
	 .run = run_clients},
	{0}};
