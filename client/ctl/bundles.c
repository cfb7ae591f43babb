/* Collects the bundles that listed tensors belong to. */
#include "client/ctl/bundles.h"

#include "client/ctl/broker.h"
#include "client/ctl/metadata.h"
#include "proto/error.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define AT(field) .offset = offsetof(struct bundle, field)

/* Columns that are the same for all members show the value of one member. */
const struct column bundles_columns[] = {
	{"NAME", "name", COLUMN_TEXT, AT(name)},
	{">VERSION", "version", COLUMN_U64, AT(member.info.version)},
	{">TENSORS", "tensors", COLUMN_U64, AT(n_tensors)},
	{">BYTES", "bytes", COLUMN_SIZE, AT(size)},
	{">HELD", "held", COLUMN_U64, AT(n_held)},
	{">AGE", "age_ms", COLUMN_AGE, AT(member.entry.age_ms)},
	{"OWNER", "uid", COLUMN_U32, AT(member.entry.uid),
	 .text = listing_text_user},
	{"DEVICE", .offset = offsetof(struct bundle, member),
	 .text = listing_text_place},
	{NULL, "device", COLUMN_TEXT, AT(member.info.device),
	 .text = listing_text_device},
	{"MODE", "mode", COLUMN_TEXT, AT(member.entry.mode),
	 .text = listing_text_mode, .is_long = true},
	{">GID", "gid", COLUMN_U32, AT(member.entry.gid), .is_long = true},
	{">ENDS IN", "ttl_left_ms", COLUMN_AGE, AT(member.entry.ttl_left_ms),
	 .text = listing_text_end, .is_long = true},
	{NULL, "bundle", COLUMN_U64, AT(id)},
	{0}};

static struct bundle *find(const struct bundles *bundles, uint64_t id)
{
	/* search from the end, because the members of a bundle mostly follow
	 * one another */
	for (size_t i = bundles->n; i-- > 0;)
		if (bundles->list[i].id == id)
			return &bundles->list[i];
	return NULL;
}

static struct bundle *add(struct bundles *bundles, const struct listed *member)
{
	struct bundle *list =
		reallocarray(bundles->list, bundles->n + 1, sizeof(*list));
	char *name = strndup(member->info.name, member->entry.bundle_name_size);

	if (list)
		bundles->list = list;
	if (!list || !name) {
		free(name);
		return NULL;
	}
	list[bundles->n] = (struct bundle){
		.name = name, .id = member->entry.bundle, .member = *member};
	return &list[bundles->n++];
}

int bundles_collect(const struct listing *listing, const char *prefix,
		    struct bundles *ret)
{
	size_t prefix_size = prefix ? strlen(prefix) : 0;
	struct bundles bundles = BUNDLES_NULL;

	for (size_t i = 0; i < listing->n_entries; i++) {
		const struct listed *member = &listing->entries[i];
		struct bundle *bundle;

		if (!member->entry.bundle ||
		    member->entry.bundle_name_size < prefix_size)
			continue;
		bundle = find(&bundles, member->entry.bundle);
		if (!bundle)
			bundle = add(&bundles, member);
		if (!bundle) {
			bundles_deinit(&bundles);
			return -ENOMEM;
		}
		bundle->n_tensors +=
			!metadata_is_name(member->info.name, bundle->name);
		bundle->size += member->info.size;
		bundle->n_held += member->entry.n_holders > 0;
	}
	*ret = bundles;
	return 0;
}

static uint64_t sort_key(const struct bundle *bundle, enum args_sort sort)
{
	switch (sort) {
	case SORT_BYTES:
		return bundle->size;
	case SORT_AGE:
		return bundle->member.entry.age_ms;
	case SORT_HOLDERS:
		return bundle->n_held;
	case SORT_NAME:
	case SORT_N:
		break;
	}
	return 0;
}

static int compare(const void *a, const void *b, void *data)
{
	const enum args_sort *sort = data;
	const struct bundle *x = a, *y = b;
	uint64_t x_key = sort_key(x, *sort), y_key = sort_key(y, *sort);

	if (x_key != y_key)
		return x_key > y_key ? -1 : 1;
	return strcmp(x->name, y->name);
}

void bundles_sort(struct bundles *bundles, enum args_sort sort)
{
	if (bundles->n)
		qsort_r(bundles->list, bundles->n, sizeof(*bundles->list),
			compare, &sort);
}

void bundles_deinit(struct bundles *bundles)
{
	for (size_t i = 0; i < bundles->n; i++)
		free(bundles->list[i].name);
	free(bundles->list);
	*bundles = BUNDLES_NULL;
}

struct search {
	const char *name;
	size_t name_size;
	struct listing members;
};

static int add_member(const struct fsdp_entry *entry, void *data)
{
	struct search *search = data;

	if (entry->state != FSDP_STATE_PUBLISHED ||
	    entry->bundle_name_size != search->name_size ||
	    strncmp(entry->info->name, search->name, search->name_size) != 0)
		return 0;
	return listing_add(entry, &search->members);
}

int bundles_find(struct fsdp_client *client, const char *name,
		 bool finds_unreadable, struct listing *ret_members,
		 struct bundles *ret, struct error *err)
{
	struct search search = {.name = name, .name_size = strlen(name)};
	struct bundles bundles = BUNDLES_NULL;
	int r = fsdp_list(client, name, add_member, &search);

	if (r == 0 && finds_unreadable && !search.members.n_entries)
		r = fsdp_list_all(client, add_member, &search);
	if (r == 0)
		r = bundles_collect(&search.members, name, &bundles);
	if (r < 0)
		r = broker_walk_failed(err, r);
	else if (bundles.n == 0)
		r = error_set(err, -ENOENT,
			      "there is no bundle '%s' that you may read",
			      name);
	if (r < 0) {
		listing_deinit(&search.members);
		return r;
	}
	*ret_members = search.members;
	*ret = bundles;
	return 0;
}
