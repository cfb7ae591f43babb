/*
 * Who holds a tensor, kept beyond the walk.
 */
#pragma once
#include "client/fsdp.h"

#include <stddef.h>

struct roster {
	struct fsdp_holder *holders; /* commands are owned */
	size_t n_holders;
};

#define ROSTER_NULL ((struct roster){0})

/* An fsdp_holder_fn: keep a copy. `data` is a struct roster. */
int roster_add(const struct fsdp_holder *holder, void *data);
void roster_deinit(struct roster *roster);
