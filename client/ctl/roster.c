/* Who holds a tensor. There are few holders, so the array grows by one. */
#include "client/ctl/roster.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int roster_add(const struct fsdp_holder *holder, void *data)
{
	struct roster *roster = data;
	struct fsdp_holder *holders, *copy;

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
