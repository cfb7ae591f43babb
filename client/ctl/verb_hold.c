/* who, limbo and clients: which processes hold which tensors. */
#include "client/ctl/args.h"
#include "client/ctl/broker.h"
#include "client/ctl/bundles.h"
#include "client/ctl/listing.h"
#include "client/ctl/roster.h"
#include "client/ctl/sheet.h"
#include "client/ctl/verb.h"
#include "proto/name.h"

#include <errno.h>
#include <stdio.h>

static int add_holders(struct sheet *sheet, const struct roster *roster)
{
	int r = 0;

	for (size_t i = 0; r == 0 && i < roster->n_holders; i++)
		r = sheet_add(sheet, &roster->holders[i]);
	return r;
}

/*
 * Finds the holders of a listed slot. If the slot was freed meanwhile, or the
 * caller may not see its holders, `roster` stays empty.
 */
static int find_holders(struct fsdp_client *client, const struct listed *listed,
			struct roster *roster, struct error *err)
{
	int r = fsdp_who_slot(client, listed->info.slot,
			      listed->info.generation, roster_add, roster);

	if (r == -ENOENT || r == -ESTALE || r == -EPERM || r == -EACCES)
		return 0;
	return r < 0 ? broker_walk_failed(err, r) : 0;
}

/* --- who ----------------------------------------------------------------- */

static int check_who(const struct args *args, struct error *err)
{
	const char *name = args->operands[0];

	return name_is_bundle(name) ? name_check_bundle(name, err)
				    : name_check(name, err);
}

/* Collects the holders of all members; each process is listed once, with the
 * sum of its holds. Administrators may see them of bundles that they may not
 * read. */
static int find_bundle_holders(struct fsdp_client *client, const char *name,
			       struct roster *roster, struct error *err)
{
	struct listing members = LISTING_NULL;
	struct bundles bundles = BUNDLES_NULL;
	int r = bundles_find(client, name, true, &members, &bundles, err);

	for (size_t i = 0; r == 0 && i < members.n_entries; i++) {
		const struct listed *member = &members.entries[i];

		if (member->entry.bundle != bundles.list[0].id ||
		    !member->entry.n_holders)
			continue;
		r = fsdp_who_slot(client, member->info.slot,
				  member->info.generation, roster_add, roster);
		if (r == -ENOENT || r == -ESTALE) /* it was freed meanwhile */
			r = 0;
		else if (r < 0)
			broker_walk_failed(err, r);
	}
	bundles_deinit(&bundles);
	listing_deinit(&members);
	return r;
}

static int find_named_holders(struct fsdp_client *client, const char *name,
			      struct roster *roster, struct error *err)
{
	int r;

	if (name_is_bundle(name))
		return find_bundle_holders(client, name, roster, err);
	r = fsdp_who(client, name, roster_add, roster);
	if (r == 0)
		return 0;
	return listing_suggest(client, name, broker_walk_failed(err, r), err);
}

static int run_who(struct fsdp_client *client, const struct args *args,
		   struct error *err)
{
	struct roster roster = ROSTER_NULL;
	struct sheet sheet;
	int r;

	sheet_init(&sheet, roster_columns, args);
	r = find_named_holders(client, args->operands[0], &roster, err);
	if (r == 0 && add_holders(&sheet, &roster) < 0)
		r = broker_walk_failed(err, -ENOMEM);
	if (r == 0)
		r = sheet_print(&sheet, err);
	sheet_deinit(&sheet);
	roster_deinit(&roster);
	return r;
}

/* --- limbo --------------------------------------------------------------- */

/* There is one row for each holder, so that each row is complete in itself. A
 * tensor without holders has one row with pid 0. */
struct limbo_row {
	struct listed listed;
	struct fsdp_holder holder;
};

static const char *text_holder_user(const void *field,
				    char buffer[COLUMN_BUFFER])
{
	const struct fsdp_holder *holder = field;

	return holder->pid ? listing_text_user(&holder->uid, buffer) : "-";
}

static const char *text_state(const void *field, char buffer[COLUMN_BUFFER])
{
	const struct fsdp_holder *holder = field;

	return holder->pid ? roster_text_state(field, buffer) : "-";
}

#define OF(member) .offset = offsetof(struct limbo_row, member)

/* The columns of the table. A document has the columns of the tensor and of its
 * holders instead. */
static const struct column limbo_columns[] = {
	{"SLOT", OF(listed), .text = listing_text_slot},
	{"WAS", OF(listed.info.name), .text = listing_text_name},
	{"DTYPE", OF(listed), .text = listing_text_dtype},
	{"SHAPE", OF(listed), .text = listing_text_shape},
	{">BYTES", .kind = COLUMN_SIZE, OF(listed.info.size)},
	{">AGE", .kind = COLUMN_AGE, OF(listed.entry.age_ms)},
	{"OWNER", OF(listed.entry.uid), .text = listing_text_user},
	{"DEVICE", OF(listed), .text = listing_text_place},
	{">PID", OF(holder.pid), .text = listing_text_pid},
	{"COMMAND", .kind = COLUMN_TEXT, OF(holder.command)},
	{"USER", OF(holder), .text = text_holder_user},
	{">HOLDS", .kind = COLUMN_I64, OF(holder.holds)},
	{"STATE", OF(holder), .text = text_state},
	{0}};

static int add_limbo_rows(struct sheet *sheet, const struct listed *listed,
			  const struct roster *roster)
{
	struct limbo_row row = {.listed = *listed, .holder.command = "-"};
	int r = 0;

	if (roster->n_holders == 0)
		return sheet_add(sheet, &row);
	for (size_t i = 0; r == 0 && i < roster->n_holders; i++) {
		row.holder = roster->holders[i];
		r = sheet_add(sheet, &row);
	}
	return r;
}

/* Adds an object with the columns of the tensor, and the array "held_by". */
static int add_limbo_object(struct sheet *sheet, const struct listed *listed,
			    const struct roster *roster)
{
	json_t *object = sheet_object(listing_columns, listed);
	json_t *holders = json_array();
	int r = 0;

	for (size_t i = 0; r == 0 && i < roster->n_holders; i++)
		r = json_array_append_new(
			holders,
			sheet_object(roster_columns, &roster->holders[i]));
	r |= json_object_set_new(object, "held_by", holders);
	return json_array_append_new(sheet->array, object) || r ? -ENOMEM : 0;
}

static int add_limbo(struct fsdp_client *client, struct sheet *sheet,
		     const struct listed *listed, struct error *err)
{
	struct roster roster = ROSTER_NULL;
	int r = find_holders(client, listed, &roster, err);

	if (r == 0) {
		r = sheet->is_json ? add_limbo_object(sheet, listed, &roster)
				   : add_limbo_rows(sheet, listed, &roster);
		if (r < 0)
			broker_walk_failed(err, r);
	}
	roster_deinit(&roster);
	return r;
}

static int run_limbo(struct fsdp_client *client, const struct args *args,
		     struct error *err)
{
	struct listing listing = LISTING_NULL;
	struct sheet sheet;
	int r = fsdp_limbo(client, listing_add, &listing);

	if (r < 0)
		r = broker_walk_failed(err, r);
	sheet_init(&sheet, limbo_columns, args);
	listing_sort(&listing);
	for (size_t i = 0; r == 0 && i < listing.n_entries; i++)
		r = add_limbo(client, &sheet, &listing.entries[i], err);
	if (r == 0)
		r = sheet_print(&sheet, err);
	sheet_deinit(&sheet);
	listing_deinit(&listing);
	return r;
}

/* --- clients ------------------------------------------------------------- */

#define AT(member) .offset = offsetof(struct fsdp_peer, member)

static const struct column client_columns[] = {
	{">SESSION", "session", COLUMN_U64, AT(session)},
	{">PID", "pid", COLUMN_U32, AT(pid)},
	{"USER", "uid", COLUMN_U32, AT(uid), .text = listing_text_user},
	{"COMMAND", "command", COLUMN_TEXT, AT(command)},
	{"CONNECTED", "connected", COLUMN_BOOL, AT(is_connected)},
	{">HELD", "held", COLUMN_U64, AT(n_slots)},
	{">ALLOCATED", "allocated_bytes", COLUMN_SIZE, AT(n_bytes)},
	{">REQUESTS", "requests", COLUMN_U64, AT(n_requests)},
	{">WAITING", "waiting", COLUMN_U32, AT(n_waiting)},
	{">AGE", "age_ms", COLUMN_AGE, AT(age_ms)},
	{0}};

SHEET_RUN(run_clients, fsdp_clients, struct fsdp_peer, client_columns)

const struct verb verbs_hold[] = {
	{.name = "who",
	 .operands = "NAME",
	 .summary = "list the processes that hold a tensor, or members of a "
		    "bundle",
	 .accepts = ARG_BIT(ARG_JSON),
	 .n_min = 1,
	 .n_max = 1,
	 .check = check_who,
	 .run = run_who},
	{.name = "limbo",
	 .operands = "",
	 .summary = "list the tensors in limbo, which only holds keep, and "
		    "their holders",
	 .accepts = ARG_BIT(ARG_JSON),
	 .run = run_limbo},
	{.name = "clients",
	 .operands = "",
	 .summary = "list the sessions, one for each process",
	 .accepts = ARG_BIT(ARG_JSON),
	 .run = run_clients},
	{0}};
