/* Tensors as the broker listed them. */
#include "client/ctl/listing.h"

#include "client/ctl/broker.h"
#include "proto/error.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* With its name behind it, in one piece of the heap. */
static const struct fsdp_info *info_copy(const struct fsdp_info *info)
{
	size_t name_size = strlen(info->name) + 1;
	struct fsdp_info *copy = malloc(sizeof(*copy) + name_size);

	if (!copy)
		return NULL;
	*copy = *info;
	copy->name = memcpy(copy + 1, info->name, name_size);
	return copy;
}

int listing_add(const struct fsdp_entry *entry, void *data)
{
	struct listing *listing = data;
	struct fsdp_entry *copy;

	if (listing->n_entries == listing->n_room) {
		size_t n_room = listing->n_room ? listing->n_room * 2 : 64;
		struct fsdp_entry *entries = reallocarray(
			listing->entries, n_room, sizeof(*entries));

		if (!entries)
			return -ENOMEM;
		listing->entries = entries;
		listing->n_room = n_room;
	}
	copy = &listing->entries[listing->n_entries];
	*copy = *entry;
	copy->info = info_copy(entry->info);
	if (!copy->info)
		return -ENOMEM;
	listing->n_entries++;
	return 0;
}

static int compare(const void *a, const void *b)
{
	const struct fsdp_info *x = ((const struct fsdp_entry *)a)->info;
	const struct fsdp_info *y = ((const struct fsdp_entry *)b)->info;
	int r = strcmp(x->name, y->name);

	if (r)
		return r;
	return x->slot < y->slot ? -1 : x->slot > y->slot;
}

void listing_sort(struct listing *listing)
{
	/* qsort() must not get NULL, even for nothing */
	if (listing->n_entries)
		qsort(listing->entries, listing->n_entries,
		      sizeof(*listing->entries), compare);
}

void listing_deinit(struct listing *listing)
{
	for (size_t i = 0; i < listing->n_entries; i++)
		free((void *)listing->entries[i].info);
	free(listing->entries);
	*listing = LISTING_NULL;
}

struct find {
	const char *name;
	struct listing *listing;
};

static int add_if_named(const struct fsdp_entry *entry, void *data)
{
	struct find *find = data;
	int r;

	if (strcmp(entry->info->name, find->name) != 0)
		return 0;
	r = listing_add(entry, find->listing);
	/* 1 ends the walk: there is only one */
	return r < 0 ? r : 1;
}

int listing_find(struct fsdp_client *client, const char *name,
		 struct listing *ret, struct error *err)
{
	struct listing listing = LISTING_NULL;
	struct find find = {.name = name, .listing = &listing};
	int r = fsdp_list(client, name, add_if_named, &find);

	if (r == 1) {
		*ret = listing;
		return 0;
	}
	listing_deinit(&listing);
	if (r == -ENOMEM)
		return error_set(err, r, "out of memory for a list");
	if (r < 0)
		return broker_failed(err, r);
	return error_set(err, -ENOENT,
			 "no tensor '%s' that you may read (fsdpctl ls lists "
			 "them)",
			 name);
}
