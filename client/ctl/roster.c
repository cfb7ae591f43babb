/* Collects the holders of a tensor. They are few, so the array grows by one
 * element at a time. */
#include "client/ctl/roster.h"
#include "client/ctl/listing.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AT(member) .offset = offsetof(struct fsdp_holder, member)

const char *roster_text_state(const void *field, char buffer[COLUMN_BUFFER])
{
	const struct fsdp_holder *holder = field;

	snprintf(buffer, COLUMN_BUFFER, "%s%s%s",
		 holder->is_ending   ? "ending"
		 : holder->is_writer ? "writing"
				     : "reading",
		 holder->is_ending || holder->is_connected ? ""
							   : ", not connected",
		 holder->is_tainted ? ", tainted" : "");
	return buffer;
}

const struct column roster_columns[] = {
	{NULL, "session", COLUMN_U64, AT(session)},
	{">PID", "pid", COLUMN_U32, AT(pid)},
	{"COMMAND", "command", COLUMN_TEXT, AT(command)},
	{"USER", "uid", COLUMN_U32, AT(uid), .text = listing_text_user},
	{">HOLDS", "holds", COLUMN_I64, AT(holds)},
	{"STATE", .text = roster_text_state},
	{NULL, "connected", COLUMN_BOOL, AT(is_connected)},
	{NULL, "writer", COLUMN_BOOL, AT(is_writer)},
	{NULL, "tainted", COLUMN_BOOL, AT(is_tainted)},
	{NULL, "ending", COLUMN_BOOL, AT(is_ending)},
	{0}};

static struct fsdp_holder *find(const struct roster *roster, uint64_t session)
{
	for (size_t i = 0; i < roster->n_holders; i++)
		if (roster->holders[i].session == session)
			return &roster->holders[i];
	return NULL;
}

int roster_add(const struct fsdp_holder *holder, void *data)
{
	struct roster *roster = data;
	struct fsdp_holder *holders, *copy = find(roster, holder->session);

	if (copy) {
		copy->holds += holder->holds;
		copy->is_writer |= holder->is_writer;
		copy->is_tainted |= holder->is_tainted;
		copy->is_ending |= holder->is_ending;
		return 0;
	}
	holders = reallocarray(roster->holders, roster->n_holders + 1,
			       sizeof(*holders));
	if (!holders)
		return -ENOMEM;
	roster->holders = holders;
	copy = &holders[roster->n_holders];
	*copy = *holder;
	copy->command = strdup(holder->command);
	if (!copy->command)
		return -ENOMEM;
	roster->n_holders++;
	return 0;
}

void roster_deinit(struct roster *roster)
{
	for (size_t i = 0; i < roster->n_holders; i++)
		free((char *)roster->holders[i].command);
	free(roster->holders);
	*roster = ROSTER_NULL;
}
