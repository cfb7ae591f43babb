/* config and reload: read and reload the values of the configuration. */
#include "broker/broker.h"
#include "broker/verbs/verbs.h"
#include "proto/error.h"
#include <errno.h>

#define PAGE_ENTRIES 64

int verb_config(struct verb_call *call, struct error *err)
{
	struct config_reply *reply = &call->reply->config;
	const struct config *config = &call->broker->base.config;
	size_t i = call->request->config.cursor;
	struct config_entry *entries =
		verb_scratch(call, PAGE_ENTRIES * sizeof(*entries));

	reply->items = verb_scratch(call, PAGE_ENTRIES * sizeof(*reply->items));
	if (!reply->items || !entries)
		return error_nomem(err, "the configuration");
	for (; reply->n_items < PAGE_ENTRIES; i++) {
		struct config_entry *entry = &entries[reply->n_items];

		if (!config_entry(config, i, entry))
			return VERB_DONE;
		reply->items[reply->n_items++] = (struct config_item){
			.section = entry->section,
			.name = entry->name,
			.value = entry->value,
			.origin = entry->origin,
		};
	}
	reply->next_cursor = i;
	return VERB_DONE;
}

int verb_reload(struct verb_call *call, struct error *err)
{
	struct reload *reload = &call->broker->reload;

	if (!session_is_admin(call->session))
		return error_set(
			err, -EPERM,
			"cannot reload the configuration: only root, the "
			"broker's user and members of admin_group may");
	if (!call->is_rerun)
		reload_start(call->broker);
	if (reload->is_running) {
		call->wait_name = RELOAD_KEY;
		call->wait_ms = -1;
		return VERB_PARK_NAME;
	}
	if (reload->failure.code < 0)
		return error_set(err, reload->failure.code, "%s",
				 reload->failure.msg);
	call->reply->reload.report = reload->report;
	return VERB_DONE;
}
