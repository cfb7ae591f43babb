/*
 * prefixes: lists the first components of names, their owners, and the number
 * of names below them.
 *
 * All users see the configured prefixes and their own; root and administrators
 * see all. Configured prefixes come first, so the cursor is an index into them
 * or, after them, the number of a record.
 */
#include "broker/broker.h"
#include "broker/session/session.h"
#include "broker/tensor/prefix.h"
#include "broker/verbs/verbs.h"
#include "proto/error.h"
#include <string.h>

#define MAX_EXAMINED 4096
/* A page of this many prefixes fits into a frame, even with names of full
 * length. */
#define PAGE_ITEMS 128

static const struct prefix_record *find_record(const struct broker *broker,
					       const char *name)
{
	uint32_t prefix = prefix_find(&broker->store, name, strlen(name));

	return prefix ? catalog_prefix(&broker->store.catalog, prefix) : NULL;
}

/* Fill in an item. `record` is NULL if no name begins with the prefix. */
static void fill(struct prefix_item *item, const char *name, uint32_t uid,
		 const struct prefix_record *record)
{
	*item = (struct prefix_item){.name = name, .uid = uid};
	if (!record)
		return;
	item->n_names = record->n_names;
	item->n_bundles = record->n_bundles;
}

static void add_configured(struct verb_call *call, size_t i)
{
	struct prefixes_reply *reply = &call->reply->prefixes;
	const struct config_prefix *prefix =
		&call->broker->base.config.prefixes[i];
	struct prefix_item *item = &reply->items[reply->n_items++];

	fill(item, prefix->name, prefix->uid,
	     find_record(call->broker, prefix->name));
	item->is_configured = true;
}

static bool is_shown(const struct verb_call *call,
		     const struct prefix_record *record)
{
	if (!record->name_size ||
	    prefix_is_configured(&call->broker->store, record))
		return false;
	return record->uid == session_record(call->session)->uid ||
	       session_is_admin(call->session);
}

/* Add a prefix of the catalog, whose name has no final 0. */
static int add_claimed(struct verb_call *call,
		       const struct prefix_record *record, struct error *err)
{
	const struct broker *broker = call->broker;
	struct prefixes_reply *reply = &call->reply->prefixes;
	char *name = verb_scratch(call, record->name_size + 1);
	struct prefix_item *item;

	if (!name)
		return error_nomem(err, "a list");
	memcpy(name, catalog_blob(&broker->store.catalog, record->name_blob),
	       record->name_size);
	item = &reply->items[reply->n_items++];
	fill(item, name, record->uid, record);
	item->left_ms = prefix_left_ms(&broker->store, record);
	return 0;
}

int verb_prefixes(struct verb_call *call, struct error *err)
{
	const struct catalog *catalog = &call->broker->store.catalog;
	struct prefixes_reply *reply = &call->reply->prefixes;
	uint64_t n_configured = call->broker->base.config.n_prefixes;
	uint64_t end =
		n_configured + catalog_n_touched(catalog, SECTION_PREFIX);
	uint64_t at = call->request->prefixes.cursor;
	const struct prefix_record *record;
	uint32_t n_examined = 0;
	int r = 0;

	reply->items = verb_scratch(call, PAGE_ITEMS * sizeof(*reply->items));
	if (!reply->items)
		return error_nomem(err, "a list");
	for (; at < end && reply->n_items < PAGE_ITEMS &&
	       n_examined++ < MAX_EXAMINED && r == 0;
	     at++) {
		if (at < n_configured) {
			add_configured(call, at);
			continue;
		}
		record = catalog_prefix(catalog,
					(uint32_t)(at - n_configured + 1));
		if (is_shown(call, record))
			r = add_claimed(call, record, err);
	}
	reply->next_cursor = at < end ? at : 0;
	return r < 0 ? r : VERB_DONE;
}
