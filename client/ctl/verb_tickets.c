/* tickets and revoke: list and revoke tickets, which pass tensors between
 * processes. */
#include "client/ctl/args.h"
#include "client/ctl/broker.h"
#include "client/ctl/listing.h"
#include "client/ctl/sheet.h"
#include "client/ctl/verb.h"
#include "client/fsdp.h"
#include "proto/error.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *text_tensor(const void *field, char buffer[COLUMN_BUFFER])
{
	const struct fsdp_ticket_entry *entry = field;

	if (*entry->name)
		return entry->name;
	snprintf(buffer, COLUMN_BUFFER, "%u:%" PRIu64, entry->slot,
		 entry->generation);
	return buffer;
}

#define AT(member) .offset = offsetof(struct fsdp_ticket_entry, member)

static const struct column columns[] = {
	{"TICKET", "ticket", COLUMN_HEX, AT(id)},
	{"TENSOR", .text = text_tensor},
	{NULL, "name", COLUMN_TEXT, AT(name)},
	{NULL, "slot", COLUMN_U32, AT(slot)},
	{NULL, "generation", COLUMN_U64, AT(generation)},
	{">KEEPS", "block_bytes", COLUMN_SIZE, AT(block_size)},
	{">PID", "pid", COLUMN_U32, AT(pid)},
	{"OWNER", "uid", COLUMN_U32, AT(uid), .text = listing_text_user},
	{">USES LEFT", "uses_left", COLUMN_U32, AT(uses_left)},
	{">AGE", "age_ms", COLUMN_AGE, AT(age_ms)},
	{">ENDS IN", "ttl_left_ms", COLUMN_AGE, AT(ttl_left_ms)},
	{0}};

SHEET_RUN(run_tickets, fsdp_tickets, struct fsdp_ticket_entry, columns)

static int read_ticket(const char *text, uint64_t *ret, struct error *err)
{
	if (strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16)
		return error_set(err, -EINVAL,
				 "'%.40s' is not 16 hexadecimal digits as "
				 "fsdpctl tickets shows them",
				 text);
	*ret = strtoull(text, NULL, 16);
	return 0;
}

static int check_revoke(const struct args *args, struct error *err)
{
	uint64_t id;
	int r = 0;

	for (size_t i = 0; r == 0 && i < args->n_operands; i++)
		r = read_ticket(args->operands[i], &id, err);
	return r;
}

/* Tickets are revoked one by one. After an error the earlier ones are revoked,
 * and the later ones are not. */
static int run_revoke(struct fsdp_client *client, const struct args *args,
		      struct error *err)
{
	uint64_t id;
	int r = 0;

	for (size_t i = 0; r == 0 && i < args->n_operands; i++) {
		r = read_ticket(args->operands[i], &id, err);
		if (r == 0)
			r = fsdp_ticket_revoke(client, id);
	}
	return r < 0 ? broker_failed(err, r) : 0;
}

const struct verb verbs_tickets[] = {
	{.name = "tickets",
	 .operands = "",
	 .summary = "list the valid tickets, and the memory that they keep",
	 .accepts = ARG_BIT(ARG_JSON),
	 .run = run_tickets},
	{.name = "revoke",
	 .operands = "TICKET...",
	 .summary = "revoke tickets; the memory that only they keep is freed",
	 .n_min = 1,
	 .n_max = SIZE_MAX,
	 .check = check_revoke,
	 .run = run_revoke},
	{0}};
