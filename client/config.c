/*
 * The broker's configuration: reading it, and making the broker reload it.
 */
#include "client/client.h"
#include <stdio.h>

static int show(const struct config_reply *reply, fsdp_config_fn *fn,
		void *data)
{
	int r = 0;

	for (uint32_t i = 0; i < reply->n_items && r == 0; i++) {
		const struct config_item *item = &reply->items[i];
		struct fsdp_config_entry entry = {
			.struct_size = sizeof(entry),
			.section = item->section,
			.name = item->name,
			.value = item->value,
			.origin = item->origin,
		};

		r = fn(&entry, data);
	}
	return r;
}

int fsdp_config(struct fsdp_client *client, fsdp_config_fn *fn, void *data)
{
	struct error *err = error_of_thread();
	struct request request = {.kind = MESSAGE_CONFIG};
	int r = client_check(client, err);

	while (r == 0) {
		struct answer answer;

		r = client_call(client, &request, &answer, err);
		if (r < 0)
			break;
		r = show(&answer.reply.config, fn, data);
		request.config.cursor = answer.reply.config.next_cursor;
		answer_deinit(&answer);
		if (request.config.cursor == 0)
			break;
	}
	return r;
}

int fsdp_reload(struct fsdp_client *client, char *ret, size_t size)
{
	struct error *err = error_of_thread();
	struct request request = {.kind = MESSAGE_RELOAD};
	struct answer answer;
	int r = client_check(client, err);

	if (r == 0)
		r = client_call(client, &request, &answer, err);
	if (r < 0)
		return r;
	snprintf(ret, size, "%s", answer.reply.reload.report);
	answer_deinit(&answer);
	return 0;
}
