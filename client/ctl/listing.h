/*
 * Tensors as the broker listed them, kept beyond the walk, and sorted.
 */
#pragma once
#include "client/fsdp.h"

#include <stddef.h>

struct error;

struct listing {
	struct fsdp_entry *entries; /* infos are owned */
	size_t n_entries, n_room;
};

#define LISTING_NULL ((struct listing){0})

/* An fsdp_entry_fn: keep a copy. `data` is a struct listing. */
int listing_add(const struct fsdp_entry *entry, void *data);
/* By name, then by slot. */
void listing_sort(struct listing *listing);
void listing_deinit(struct listing *listing);

/* The tensor of exactly this name; -ENOENT. `ret` has one entry. */
int listing_find(struct fsdp_client *client, const char *name,
		 struct listing *ret, struct error *err);
