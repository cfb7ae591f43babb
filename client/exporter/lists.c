#include "client/exporter/lists.h"
#include "client/exporter/text.h"
#include "client/monitor/document.h"
#include "client/monitor/snapshot.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Callbacks return this to end a list early. */
#define ENOUGH 1

/* If there are more tensors, those in limbo are only counted, because the
 * broker must look at all tensors to list them. */
#define LIMBO_MAX_TENSORS 100000

static json_t *bounded(uint64_t n, json_t *items)
{
	return json_pack("{s:o, s:o}", "n", text_number(n), "items", items);
}

/* --- sessions ------------------------------------------------------------ */

struct session {
	struct fsdp_peer peer;
	char command[32];
};

struct sessions {
	struct session *list;
	size_t n;
};

static int add_session(const struct fsdp_peer *peer, void *data)
{
	struct sessions *sessions = data;
	struct session *it;

	it = snapshot_append(&sessions->list, &sessions->n, sizeof(*it));
	if (!it)
		return -ENOMEM;
	it->peer = *peer;
	strncpy(it->command, peer->command, sizeof(it->command) - 1);
	return 0;
}

static int compare_sessions(const void *a, const void *b)
{
	const struct fsdp_peer *x = &((const struct session *)a)->peer;
	const struct fsdp_peer *y = &((const struct session *)b)->peer;

	if (x->n_bytes != y->n_bytes)
		return x->n_bytes < y->n_bytes ? 1 : -1;
	if (x->n_slots != y->n_slots)
		return x->n_slots < y->n_slots ? 1 : -1;
	return (x->session > y->session) - (x->session < y->session);
}

static json_t *session_json(const struct session *session)
{
	const struct fsdp_peer *peer = &session->peer;

	return json_pack(
		"{s:i, s:o, s:o, s:b, s:o, s:o, s:o, s:o, s:i}", "pid",
		(int)peer->pid, "uid", text_number(peer->uid), "command",
		document_text(session->command), "connected",
		peer->is_connected, "tensors", text_number(peer->n_slots),
		"bytes", text_number(peer->n_bytes), "requests",
		text_number(peer->n_requests), "age_ms",
		text_number(peer->age_ms), "waiting", (int)peer->n_waiting);
}

int lists_sessions(struct fsdp_client *client, json_t **ret)
{
	struct sessions sessions = {0};
	json_t *items = json_array();
	int r = fsdp_clients(client, add_session, &sessions);

	if (sessions.n)
		qsort(sessions.list, sessions.n, sizeof(*sessions.list),
		      compare_sessions);
	for (size_t i = 0; i < sessions.n && i < LISTS_SESSIONS; i++)
		json_array_append_new(items, session_json(&sessions.list[i]));
	free(sessions.list);
	*ret = bounded(sessions.n, items);
	return r;
}

/* --- channels ------------------------------------------------------------ */

struct channels {
	json_t *items;
	uint64_t n;
};

static json_t *channel_json(const struct fsdp_channel_entry *entry)
{
	return json_pack(
		"{s:o, s:o, s:s, s:s, s:i, s:o, s:o, s:i, s:i, s:o, s:o, s:o, "
		"s:b, s:b, s:o}",
		"name", document_text(entry->name), "uid",
		text_number(entry->uid), "mode",
		entry->mode == FSDP_CHANNEL_BROADCAST ? "broadcast" : "share",
		"role", entry->role == FSDP_PRODUCER ? "producer" : "consumer",
		"pid", (int)entry->pid, "command",
		document_text(entry->command), "capacity",
		text_number(entry->capacity), "slots", (int)entry->n_slots,
		"queued", (int)entry->n_queued, "items",
		text_number(entry->n_items), "waits",
		text_number(entry->n_waits), "age_ms",
		text_number(entry->age_ms), "ended", entry->is_ended, "waiting",
		entry->is_waiting, "wait_ms", text_number(entry->wait_ms));
}

static int add_channel(const struct fsdp_channel_entry *entry, void *data)
{
	struct channels *channels = data;

	if (channels->n++ >= LISTS_CHANNELS)
		return 0;
	return json_array_append_new(channels->items, channel_json(entry)) < 0
		       ? -ENOMEM
		       : 0;
}

int lists_channels(struct fsdp_client *client, json_t **ret)
{
	struct channels channels = {.items = json_array()};
	int r = fsdp_channels(client, add_channel, &channels);

	*ret = bounded(channels.n, channels.items);
	return r;
}

/* --- tensors ------------------------------------------------------------- */

static const char *const states[] = {"free", "writing", "published", "limbo"};

/* A tensor whose holders are requested after the list is complete. */
struct held {
	uint32_t slot;
	uint64_t generation;
	json_t *entry; /* borrowed from the list */
};

struct tensors {
	json_t *items;
	size_t n_max;
	struct held held[LISTS_HOLDERS];
	size_t n_held;
};

static json_t *entry_json(const struct fsdp_entry *entry)
{
	const struct fsdp_info *info = entry->info;

	return json_pack(
		"{s:o, s:o, s:o, s:o, s:s, s:o, s:o, s:o, s:o, s:o, s:i, s:o, "
		"s:o, s:o, s:b, s:b, s:b}",
		"name", document_text(info->name), "version",
		text_number(info->version), "size", text_number(info->size),
		"block_size", text_number(entry->block_size), "state",
		states[entry->state % 4], "uid", text_number(entry->uid),
		"payer_uid", text_number(entry->payer_uid), "maker_pid",
		text_number(entry->maker_pid), "chunk",
		text_number(entry->chunk), "offset", text_number(entry->offset),
		"holders", (int)entry->n_holders, "age_ms",
		text_number(entry->age_ms), "shape",
		document_shape(info->shape, info->n_dims), "device",
		text_device(&info->device), "tainted", info->is_tainted,
		"collective", entry->is_collective, "ticket",
		entry->n_tickets > 0);
}

static int add_tensor(const struct fsdp_entry *entry, void *data)
{
	struct tensors *tensors = data;
	json_t *item;

	if (json_array_size(tensors->items) >= tensors->n_max)
		return ENOUGH;
	item = entry_json(entry);
	if (json_array_append_new(tensors->items, item) < 0)
		return -ENOMEM;
	if (entry->n_holders && tensors->n_held < LISTS_HOLDERS)
		tensors->held[tensors->n_held++] = (struct held){
			entry->info->slot, entry->info->generation, item};
	return 0;
}

static int add_holder(const struct fsdp_holder *holder, void *data)
{
	json_t *item = json_pack("{s:i, s:o, s:o}", "pid", (int)holder->pid,
				 "uid", text_number(holder->uid), "command",
				 document_text(holder->command));

	/* There may be thousands of holders; the page shows the first of
	 * them. */
	if (json_array_append_new(data, item) < 0)
		return -ENOMEM;
	return json_array_size(data) >= 8 ? ENOUGH : 0;
}

/* Add the holders. A tensor may have been freed by now, or the exporter may not
 * be allowed to see its holders. */
static int add_holders(struct fsdp_client *client, struct tensors *tensors)
{
	int r = 0;

	for (size_t i = 0; i < tensors->n_held && r >= 0; i++) {
		const struct held *held = &tensors->held[i];
		json_t *holders = json_array();

		r = fsdp_who_slot(client, held->slot, held->generation,
				  add_holder, holders);
		json_object_set_new(held->entry, "held_by", holders);
		if (r == -ESTALE || r == -ENOENT || r == -EACCES)
			r = 0;
	}
	return r < 0 ? r : 0;
}

int lists_tensors(struct fsdp_client *client, const struct snapshot *snapshot,
		  json_t **ret)
{
	struct tensors tensors = {.items = json_array(),
				  .n_max = LISTS_TENSORS};
	int r = fsdp_list_all(client, add_tensor, &tensors);

	if (r >= 0)
		r = add_holders(client, &tensors);
	*ret = bounded(snapshot_value(snapshot, "slots"), tensors.items);
	return r;
}

int lists_limbo(struct fsdp_client *client, const struct snapshot *snapshot,
		json_t **ret)
{
	struct tensors tensors = {.items = json_array(), .n_max = LISTS_LIMBO};
	uint64_t n = snapshot_value(snapshot, "slots_limbo");
	int r = 0;

	if (n > 0 && snapshot_value(snapshot, "slots") <= LIMBO_MAX_TENSORS)
		r = fsdp_limbo(client, add_tensor, &tensors);
	if (r >= 0)
		r = add_holders(client, &tensors);
	*ret = bounded(n, tensors.items);
	return r;
}
