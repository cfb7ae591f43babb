/*
 * Requests that read the broker's configuration, or make the broker reload it.
 */
#include "client/client.h"
#include "client/pages.h"
#include <stdio.h>

static int show(const struct config_item *item, fsdp_config_fn *fn, void *data)
{
	struct fsdp_config_entry entry = {
		.struct_size = sizeof(entry),
		.section = item->section,
		.name = item->name,
		.value = item->value,
		.origin = item->origin,
	};

	return fn(&entry, data);
}

int fsdp_config(struct fsdp_client *client, fsdp_config_fn *fn, void *data)
{
	struct request request = {.kind = MESSAGE_CONFIG};
	struct pages pages = PAGES(client, &request, config);
	const struct config_reply *page = &pages.received.reply.config;

	pages_for_each (&pages, page, item)
		pages.r = show(item, fn, data);
	return pages.r;
}

int fsdp_reload(struct fsdp_client *client, char *ret, size_t size)
{
	struct error *err = error_of_thread();
	struct request request = {.kind = MESSAGE_RELOAD};
	struct received received;
	int r = client_call(client, &request, &received, err);

	if (r < 0)
		return r;
	snprintf(ret, size, "%s", received.reply.reload.report);
	received_deinit(&received);
	return 0;
}
