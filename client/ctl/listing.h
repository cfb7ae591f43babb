/*
 * A list of tensors. It has copies, so it stays valid after the call that
 * listed them.
 */
#pragma once
#include "client/ctl/args.h"
#include "client/ctl/sheet.h"
#include "client/fsdp.h"

#include <stddef.h>

struct error;

/* The columns of a struct listed. */
extern const struct column listing_columns[];

/* These are functions for column.text. Other lists use them for fields of the
 * same types. */
const char *listing_text_dtype(const void *listed, char buffer[COLUMN_BUFFER]);
const char *listing_text_shape(const void *listed, char buffer[COLUMN_BUFFER]);
const char *listing_text_slot(const void *listed, char buffer[COLUMN_BUFFER]);
const char *listing_text_user(const void *uid, char buffer[COLUMN_BUFFER]);
const char *listing_text_place(const void *listed, char buffer[COLUMN_BUFFER]);
const char *listing_text_device(const void *device, char buffer[COLUMN_BUFFER]);
/* A tensor may have no name, and there is no pid if the process has ended or
 * belongs to another user. */
const char *listing_text_name(const void *name, char buffer[COLUMN_BUFFER]);
const char *listing_text_pid(const void *pid, char buffer[COLUMN_BUFFER]);
const char *listing_text_mode(const void *mode, char buffer[COLUMN_BUFFER]);
const char *listing_text_comm_state(const void *state,
				    char buffer[COLUMN_BUFFER]);
const char *listing_text_end(const void *ms, char buffer[COLUMN_BUFFER]);

/* One tensor. The name is owned. entry.info is not set. */
struct listed {
	struct fsdp_info info;
	struct fsdp_entry entry;
};

struct listing {
	struct listed *entries;
	size_t n_entries, capacity;
};

#define LISTING_NULL ((struct listing){0})

/* Adds a copy of the entry. This is an fsdp_entry_fn, whose `data` is a struct
 * listing. */
int listing_add(const struct fsdp_entry *entry, void *data);
/* Sorts by name, and then by slot. */
void listing_sort(struct listing *listing);
void listing_deinit(struct listing *listing);

/* Finds the tensor of exactly this name. `ret` has one entry. Returns -ENOENT
 * if there is no such tensor that the caller may read. */
int listing_find(struct fsdp_client *client, const char *name,
		 struct listing *ret, struct error *err);

/*
 * Returns `code`, with which a request for `name` has failed. If it is -ENOENT
 * but longer names begin with "NAME/", this adds a hint to the sentence in
 * `err`: the bundle that the user may have meant, or how to list those names.
 */
int listing_suggest(struct fsdp_client *client, const char *name, int code,
		    struct error *err);
