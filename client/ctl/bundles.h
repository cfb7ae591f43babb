/*
 * The bundles that listed tensors belong to.
 */
#pragma once
#include "client/ctl/listing.h"

#include <stdint.h>

/* One version of one; what is said of all members is taken from the first. */
struct bundle {
	char *name; /* with its '/' */
	uint64_t id, n_tensors, size;
	uint64_t n_held; /* members that somebody holds */
	struct listed member;
};

struct bundles {
	struct bundle *list;
	size_t n;
};

#define BUNDLES_NULL ((struct bundles){0})

extern const struct column bundles_columns[];

/* Those whose names begin with `prefix` (NULL: all), of which `listing` has all
 * members and stays for as long. -ENOMEM, without a sentence. */
int bundles_collect(const struct listing *listing, const char *prefix,
		    struct bundles *ret);
void bundles_sort(struct bundles *bundles, enum args_sort sort);
void bundles_deinit(struct bundles *bundles);

/* The bundle of exactly this name and all its members; -ENOENT. */
int bundles_find(struct fsdp_client *client, const char *name,
		 struct listing *ret_members, struct bundles *ret,
		 struct error *err);
