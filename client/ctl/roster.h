/*
 * Who holds a tensor, kept beyond the walk.
 */
#pragma once
#include "client/ctl/sheet.h"
#include "client/fsdp.h"

#include <stddef.h>

/* What is shown of a holder. */
extern const struct column roster_columns[];
/* "reading, tainted": the text of its state. */
const char *roster_text_state(const void *holder, char buffer[COLUMN_BUFFER]);

struct roster {
	struct fsdp_holder *holders; /* commands are owned */
	size_t n_holders;
};

#define ROSTER_NULL ((struct roster){0})

/* An fsdp_holder_fn: keep a copy, or add the holds to those that the session
 * has already. `data` is a struct roster. */
int roster_add(const struct fsdp_holder *holder, void *data);
void roster_deinit(struct roster *roster);
