/*
 * The bundles that listed tensors belong to.
 */
#pragma once
#include "client/ctl/listing.h"

#include <stdbool.h>
#include <stdint.h>

/* One version of a bundle. Properties that all members share are taken from the
 * first member. */
struct bundle {
	char *name; /* ends in '/' */
	uint64_t id, n_tensors, size;
	uint64_t n_held; /* members that a process holds */
	struct listed member;
};

struct bundles {
	struct bundle *list;
	size_t n;
};

#define BUNDLES_NULL ((struct bundles){0})

extern const struct column bundles_columns[];

/* Collects the bundles whose names begin with `prefix` (NULL: all bundles).
 * `listing` must have all their members and outlive the result. Returns -ENOMEM
 * without a sentence. */
int bundles_collect(const struct listing *listing, const char *prefix,
		    struct bundles *ret);
void bundles_sort(struct bundles *bundles, enum args_sort sort);
void bundles_deinit(struct bundles *bundles);

/* Finds the bundle of exactly this name and lists its members. Returns -ENOENT
 * if there is no such bundle that the caller may read; with `finds_unreadable`,
 * one whose memory fsdp_list_all() lists is found, too. */
int bundles_find(struct fsdp_client *client, const char *name,
		 bool finds_unreadable, struct listing *ret_members,
		 struct bundles *ret, struct error *err);
