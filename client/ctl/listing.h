/*
 * Tensors as the broker listed them, kept beyond the walk, and sorted.
 */
#pragma once
#include "client/ctl/args.h"
#include "client/ctl/sheet.h"
#include "client/fsdp.h"

#include <stddef.h>

struct error;

/* What is shown of a struct listed. */
extern const struct column listing_columns[];

/* Texts of fields that others have, too (column.text). */
const char *listing_text_dtype(const void *listed, char buffer[COLUMN_BUFFER]);
const char *listing_text_shape(const void *listed, char buffer[COLUMN_BUFFER]);
const char *listing_text_slot(const void *listed, char buffer[COLUMN_BUFFER]);
const char *listing_text_user(const void *uid, char buffer[COLUMN_BUFFER]);
const char *listing_text_place(const void *listed, char buffer[COLUMN_BUFFER]);
const char *listing_text_device(const void *device, char buffer[COLUMN_BUFFER]);
const char *listing_text_mode(const void *mode, char buffer[COLUMN_BUFFER]);
const char *listing_text_end(const void *ms, char buffer[COLUMN_BUFFER]);

/* The name is owned; entry.info is not set. */
struct listed {
	struct fsdp_info info;
	struct fsdp_entry entry;
};

struct listing {
	struct listed *entries;
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

/*
 * Something with `name` failed with `code`, which is returned. If there is no
 * such tensor but a bundle of that name, the sentence in `err` says so.
 */
int listing_suggest(struct fsdp_client *client, const char *name, int code,
		    struct error *err);
