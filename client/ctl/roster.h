/*
 * A list of the holders of a tensor. It has copies, so it stays valid after the
 * call that listed them.
 */
#pragma once
#include "client/ctl/sheet.h"
#include "client/fsdp.h"

#include <stddef.h>

/* The columns of a holder. */
extern const struct column roster_columns[];
/* Formats the state of a holder, such as "reading, tainted". */
const char *roster_text_state(const void *holder, char buffer[COLUMN_BUFFER]);

struct roster {
	struct fsdp_holder *holders; /* the commands are owned */
	size_t n_holders;
};

#define ROSTER_NULL ((struct roster){0})

/* Adds a copy of the holder, or adds its holds to those of the same session.
 * This is an fsdp_holder_fn, whose `data` is a struct roster. */
int roster_add(const struct fsdp_holder *holder, void *data);
void roster_deinit(struct roster *roster);
