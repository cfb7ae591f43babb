/*
 * Requests that inspect the broker.
 */
#include "client/client.h"
#include "client/pages.h"
#include <stdlib.h>
#include <string.h>

static struct fsdp_info info_of(const struct list_item *item)
{
	const struct tensor_place *place = &item->place;
	struct fsdp_info info = {
		.struct_size = sizeof(info),
		.dtype = (enum fsdp_dtype)place->type.dtype,
		.n_dims = place->type.n_dims,
		.size = place->size,
		.version = place->version,
		.slot = place->ref.slot,
		.generation = place->ref.generation,
		.name = place->name,
		.is_tainted = place->is_tainted,
	};

	memcpy(info.device.uuid, item->device.bytes, sizeof(info.device.uuid));
	memcpy(info.shape, place->type.shape, sizeof(info.shape));
	memcpy(info.strides, place->type.strides, sizeof(info.strides));
	return info;
}

static int show_entry(const struct list_item *item, fsdp_entry_fn *fn,
		      void *data)
{
	const struct tensor_place *place = &item->place;
	const struct fsdp_info info = info_of(item);
	struct fsdp_entry entry = {
		.struct_size = sizeof(entry),
		.info = &info,
		.uid = item->access.uid,
		.gid = item->access.gid,
		.mode = item->access.mode,
		.state = (enum fsdp_state)item->state,
		.age_ms = item->age_ms,
		.ttl_left_ms = item->ttl_left_ms,
		.n_holders = item->n_holders,
		.flags = item->flags,
		.bundle = item->bundle,
		.shared = (enum fsdp_shared)item->shared,
		.block = item->block,
		.block_size = item->block_bytes,
		.n_in_block = item->block_slots,
		.payer_uid = item->payer_uid,
		.maker_pid = item->maker_pid,
		.n_tickets = item->n_tickets,
		.is_collective = item->is_collective,
		.bundle_name_size = item->bundle_name_size,
		.chunk = place->chunk,
		.offset = place->offset,
		.digest = item->digest,
	};

	return fn(&entry, data);
}

static int list(struct fsdp_client *client, const char *prefix,
		enum list_filter filter, fsdp_entry_fn *fn, void *data)
{
	struct request request = {
		.kind = MESSAGE_LIST,
		.list = {.prefix = prefix ? prefix : "", .filter = filter},
	};
	struct pages pages = PAGES(client, &request, list);
	const struct list_reply *page = &pages.received.reply.list;

	pages_for_each (&pages, page, item)
		pages.r = show_entry(item, fn, data);
	return pages.r;
}

int fsdp_list(struct fsdp_client *client, const char *prefix, fsdp_entry_fn *fn,
	      void *data)
{
	return list(client, prefix, LIST_NAMED, fn, data);
}

int fsdp_list_all(struct fsdp_client *client, fsdp_entry_fn *fn, void *data)
{
	return list(client, NULL, LIST_CHARGED, fn, data);
}

int fsdp_limbo(struct fsdp_client *client, fsdp_entry_fn *fn, void *data)
{
	return list(client, NULL, LIST_LIMBO, fn, data);
}

static int show_holder(const struct holder *holder, bool is_tainted,
		       fsdp_holder_fn *fn, void *data)
{
	struct fsdp_holder shown = {
		.struct_size = sizeof(shown),
		.session = holder->session,
		.pid = holder->pid,
		.uid = holder->uid,
		.command = holder->command,
		.holds = holder->holds,
		.is_connected = holder->is_connected,
		.is_writer = holder->is_writer,
		.is_tainted = is_tainted,
		.is_ending = holder->is_ending,
	};

	return fn(&shown, data);
}

static int who(struct fsdp_client *client, struct who_request who_request,
	       fsdp_holder_fn *fn, void *data)
{
	struct request request = {.kind = MESSAGE_WHO, .who = who_request};
	struct pages pages = PAGES(client, &request, who);
	const struct who_reply *page = &pages.received.reply.who;

	while (pages_next(&pages)) {
		for (uint32_t i = 0; i < page->n_holders && pages.r == 0; i++)
			pages.r = show_holder(&page->holders[i],
					      page->place.is_tainted, fn, data);
	}
	return pages.r;
}

int fsdp_who(struct fsdp_client *client, const char *name, fsdp_holder_fn *fn,
	     void *data)
{
	return who(client, (struct who_request){.name = name}, fn, data);
}

int fsdp_who_slot(struct fsdp_client *client, uint32_t slot,
		  uint64_t generation, fsdp_holder_fn *fn, void *data)
{
	return who(client,
		   (struct who_request){
			   .name = "",
			   .ref = {.slot = slot, .generation = generation}},
		   fn, data);
}

static int show_peer(const struct client_item *item, fsdp_peer_fn *fn,
		     void *data)
{
	struct fsdp_peer peer = {
		.struct_size = sizeof(peer),
		.session = item->session,
		.pid = item->pid,
		.uid = item->uid,
		.command = item->command,
		.is_connected = item->is_connected,
		.n_slots = item->n_slots,
		.n_bytes = item->n_bytes,
		.n_requests = item->n_requests,
		.age_ms = item->age_ms,
		.n_waiting = item->n_waiting,
	};

	return fn(&peer, data);
}

int fsdp_clients(struct fsdp_client *client, fsdp_peer_fn *fn, void *data)
{
	struct request request = {.kind = MESSAGE_CLIENTS};
	struct pages pages = PAGES(client, &request, clients);
	const struct clients_reply *page = &pages.received.reply.clients;

	pages_for_each (&pages, page, item)
		pages.r = show_peer(item, fn, data);
	return pages.r;
}

static int show_prefix(const struct prefix_item *item, fsdp_prefix_fn *fn,
		       void *data)
{
	struct fsdp_prefix prefix = {
		.struct_size = sizeof(prefix),
		.name = item->name,
		.uid = item->uid,
		.n_names = item->n_names,
		.n_bundles = item->n_bundles,
		.is_configured = item->is_configured,
		.left_ms = item->left_ms,
	};

	return fn(&prefix, data);
}

int fsdp_prefixes(struct fsdp_client *client, fsdp_prefix_fn *fn, void *data)
{
	struct request request = {.kind = MESSAGE_PREFIXES};
	struct pages pages = PAGES(client, &request, prefixes);
	const struct prefixes_reply *page = &pages.received.reply.prefixes;

	pages_for_each (&pages, page, item)
		pages.r = show_prefix(item, fn, data);
	return pages.r;
}

int fsdp_status(struct fsdp_client *client, fsdp_value_fn *fn, void *data,
		char **ret_note)
{
	struct error *err = error_of_thread();
	struct request request = {.kind = MESSAGE_STATUS};
	struct received received;
	const struct status_reply *reply = &received.reply.status;
	char *note = NULL;
	int r = client_call(client, &request, &received, err);

	if (r < 0)
		return r;
	if (ret_note) {
		note = strdup(reply->note);
		if (!note)
			r = error_nomem(err, "a note");
	}
	for (uint32_t i = 0; i < reply->n_values && r == 0; i++)
		r = fn(reply->values[i].name, reply->values[i].value, data);
	received_deinit(&received);
	if (r == 0 && ret_note)
		*ret_note = note;
	else
		free(note);
	return r;
}

int fsdp_status_reset(struct fsdp_client *client)
{
	struct error *err = error_of_thread();
	struct request request = {.kind = MESSAGE_STATUS, .status = {true}};

	return client_command(client, &request, err);
}
