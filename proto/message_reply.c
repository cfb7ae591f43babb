/*
 * Every reply, to protobuf and back; both directions of one message stand
 * side by side.
 *
 * The client decodes these. It trusts the broker with its data, but a broken
 * or exchanged broker shall not be able to crash it.
 */
#include "proto/message_pb.h"

#include "proto/error.h"
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#define MAX_STATE 3 /* enum slot_state, shm/table.h */

static void *build_error(const void *message, struct pb_arena *arena)
{
	const struct reply *from = message;
	Fsdp__Error *pb = pb_arena_message(arena, &fsdp__error__descriptor);

	if (pb)
		pb->sentence = bytes_from_text(from->sentence);
	return pb;
}

static int take_error(const void *body, struct room *room, void *ret,
		      struct error *err)
{
	const Fsdp__Error *pb = body;
	int r = room_open(room, 0, 1, err);

	if (r < 0)
		return r;
	return text_take(pb->sentence, ERROR_MSG_SIZE - 1, "sentence", room,
			 &((struct reply *)ret)->sentence, err);
}

static void *build_hello(const void *message, struct pb_arena *arena)
{
	const struct hello_reply *from =
		&((const struct reply *)message)->hello;
	Fsdp__HelloReply *pb =
		pb_arena_message(arena, &fsdp__hello_reply__descriptor);

	if (!pb)
		return NULL;
	if (from->is_challenge) {
		pb->is_challenge = true;
		pb->nonce = from->nonce;
		return pb;
	}
	pb->session = from->session;
	pb->token.data = (uint8_t *)(uintptr_t)from->token;
	pb->token.len = sizeof(from->token);
	pb->n_slots = from->n_slots;
	return pb;
}

static int take_hello(const void *body, struct room *room, void *ret,
		      struct error *err)
{
	const Fsdp__HelloReply *pb = body;
	struct hello_reply *to = &((struct reply *)ret)->hello;

	(void)room;
	if (pb->is_challenge) {
		to->is_challenge = true;
		to->nonce = pb->nonce;
		return 0;
	}
	if (pb->session == 0 || pb->n_slots == 0)
		return error_set(err, -EPROTO,
				 "session %" PRIu64 " with %u slots is none",
				 pb->session, pb->n_slots);
	to->session = pb->session;
	to->n_slots = pb->n_slots;
	return secret_take(pb->token, sizeof(to->token), "session token",
			   to->token, err);
}

static void *build_places(const void *message, struct pb_arena *arena)
{
	const struct places_reply *from =
		&((const struct reply *)message)->places;
	Fsdp__PlacesReply *pb =
		pb_arena_message(arena, &fsdp__places_reply__descriptor);

	if (!pb)
		return NULL;
	pb->places = places_build(from->places, sizeof(*from->places),
				  from->n_places, arena);
	pb->n_chunks = from->n_chunks;
	pb->chunks = chunks_build(from->chunks, from->n_chunks, arena);
	return pb->places && pb->chunks ? pb : NULL;
}

static int take_places(const void *body, struct room *room, void *ret,
		       struct error *err)
{
	const Fsdp__PlacesReply *pb = body;
	struct places_reply *to = &((struct reply *)ret)->places;
	size_t n, places_size, chunks_size;
	int r = places_count(pb->places, MESSAGE_MAX_ITEMS, &n, err);

	if (r < 0)
		return r;
	r = chunks_check(pb->n_chunks, err);
	if (r < 0)
		return r;
	places_size = n * sizeof(*to->places);
	chunks_size = pb->n_chunks * sizeof(*to->chunks);
	r = room_open(room, places_size + chunks_size, 1, err);
	if (r < 0)
		return r;
	to->places = room_array(room, places_size);
	to->n_places = (uint32_t)n;
	to->chunks = room_array(room, chunks_size);
	to->n_chunks = (uint32_t)pb->n_chunks;
	r = places_take(pb->places, sizeof(*to->places), room, to->places, err);
	if (r < 0)
		return r;
	return chunks_take(pb->n_chunks, pb->chunks, to->chunks, err);
}

static void *build_chunks(const void *message, struct pb_arena *arena)
{
	const struct reply *from = message;
	Fsdp__ChunksReply *pb =
		pb_arena_message(arena, &fsdp__chunks_reply__descriptor);

	if (!pb)
		return NULL;
	pb->n_chunks = from->chunks.n_chunks;
	pb->chunks =
		chunks_build(from->chunks.chunks, from->chunks.n_chunks, arena);
	return pb->chunks ? pb : NULL;
}

/* For messages that have nothing else in their room. */
static int take_chunks_alone(size_t n, Fsdp__ChunkRef *const *pb,
			     struct room *room, struct chunk_ref **ret,
			     struct error *err)
{
	size_t size = n * sizeof(**ret);
	int r = chunks_check(n, err);

	if (r < 0)
		return r;
	r = room_open(room, size, 0, err);
	if (r < 0)
		return r;
	*ret = room_array(room, size);
	return chunks_take(n, pb, *ret, err);
}

static int take_chunks(const void *body, struct room *room, void *ret,
		       struct error *err)
{
	const Fsdp__ChunksReply *pb = body;
	struct chunks_reply *to = &((struct reply *)ret)->chunks;

	to->n_chunks = (uint32_t)pb->n_chunks;
	return take_chunks_alone(pb->n_chunks, pb->chunks, room, &to->chunks,
				 err);
}

static void *build_versions(const void *message, struct pb_arena *arena)
{
	const struct reply *from = message;
	Fsdp__VersionsReply *pb =
		pb_arena_message(arena, &fsdp__versions_reply__descriptor);

	if (!pb)
		return NULL;
	pb->n_versions = from->versions.n_versions;
	pb->versions = from->versions.versions;
	return pb;
}

static int take_versions(const void *body, struct room *room, void *ret,
			 struct error *err)
{
	const Fsdp__VersionsReply *pb = body;
	struct versions_reply *to = &((struct reply *)ret)->versions;
	size_t size = pb->n_versions * sizeof(*to->versions);
	int r = count_check(pb->n_versions, MESSAGE_MAX_ITEMS, "versions", err);

	if (r < 0)
		return r;
	r = room_open(room, size, 0, err);
	if (r < 0)
		return r;
	to->n_versions = (uint32_t)pb->n_versions;
	to->versions = room_array(room, size);
	memcpy(to->versions, pb->versions, size);
	return 0;
}

static void *build_ticket(const void *message, struct pb_arena *arena)
{
	const struct reply *from = message;
	Fsdp__TicketReply *pb =
		pb_arena_message(arena, &fsdp__ticket_reply__descriptor);

	if (!pb)
		return NULL;
	pb->ticket.len = sizeof(from->ticket.ticket);
	pb->ticket.data = (uint8_t *)(uintptr_t)from->ticket.ticket;
	return pb;
}

static int take_ticket(const void *body, struct room *room, void *ret,
		       struct error *err)
{
	const Fsdp__TicketReply *pb = body;
	struct ticket_reply *to = &((struct reply *)ret)->ticket;

	(void)room;
	return secret_take(pb->ticket, sizeof(to->ticket), "ticket", to->ticket,
			   err);
}

static void *build_bundle(const void *message, struct pb_arena *arena)
{
	const struct reply *from = message;
	Fsdp__BundleReply *pb =
		pb_arena_message(arena, &fsdp__bundle_reply__descriptor);

	if (!pb)
		return NULL;
	pb->bundle = from->bundle.bundle;
	pb->version = from->bundle.version;
	return pb;
}

static int check_bundle(uint64_t bundle, struct error *err)
{
	if (bundle == 0)
		return error_set(err, -EPROTO, "it does not say which bundle");
	return 0;
}

static int take_bundle(const void *body, struct room *room, void *ret,
		       struct error *err)
{
	const Fsdp__BundleReply *pb = body;
	struct bundle_reply *to = &((struct reply *)ret)->bundle;

	(void)room;
	to->bundle = pb->bundle;
	to->version = pb->version;
	return check_bundle(pb->bundle, err);
}

static void *build_bundle_get(const void *message, struct pb_arena *arena)
{
	const struct bundle_get_reply *from =
		&((const struct reply *)message)->bundle_get;
	Fsdp__BundleGetReply *pb =
		pb_arena_message(arena, &fsdp__bundle_get_reply__descriptor);

	if (!pb)
		return NULL;
	pb->bundle = from->bundle;
	pb->version = from->version;
	pb->n_members = from->n_members;
	pb->manifest_size = from->manifest_size;
	pb->n_chunks = from->n_chunks;
	pb->chunks = chunks_build(from->chunks, from->n_chunks, arena);
	return pb->chunks ? pb : NULL;
}

static int take_bundle_get(const void *body, struct room *room, void *ret,
			   struct error *err)
{
	const Fsdp__BundleGetReply *pb = body;
	struct bundle_get_reply *to = &((struct reply *)ret)->bundle_get;
	int r = check_bundle(pb->bundle, err);

	if (r < 0)
		return r;
	if (pb->n_members > MESSAGE_MAX_PLACES ||
	    pb->manifest_size > MANIFEST_MAX_SIZE)
		return error_set(err, -EPROTO,
				 "a bundle cannot have %u members in %" PRIu64
				 " bytes",
				 pb->n_members, pb->manifest_size);
	to->bundle = pb->bundle;
	to->version = pb->version;
	to->n_members = pb->n_members;
	to->manifest_size = pb->manifest_size;
	to->n_chunks = (uint32_t)pb->n_chunks;
	return take_chunks_alone(pb->n_chunks, pb->chunks, room, &to->chunks,
				 err);
}

_Static_assert(offsetof(struct list_item, place) == 0,
	       "places of a list begin where its items do");

static void build_list_item(const struct list_item *from, Fsdp__ListItem *pb)
{
	pb->uid = from->access.uid;
	pb->gid = from->access.gid;
	pb->mode = from->access.mode;
	pb->state = from->state;
	pb->age_ms = from->age_ms;
	pb->ttl_left_ms = from->ttl_left_ms;
	pb->n_holders = from->n_holders;
	pb->flags = from->flags;
	pb->bundle = from->bundle;
	pb->device = bytes_from_device(&from->device);
	pb->shared = from->shared;
	pb->block = from->block;
	pb->block_bytes = from->block_bytes;
	pb->block_slots = from->block_slots;
	pb->maker_pid = from->maker_pid;
	pb->payer_uid = from->payer_uid;
	pb->n_tickets = from->n_tickets;
	pb->is_collective = from->is_collective;
	pb->bundle_name_size = from->bundle_name_size;
}

static void *build_list(const void *message, struct pb_arena *arena)
{
	const struct list_reply *from = &((const struct reply *)message)->list;
	Fsdp__ListReply *pb =
		pb_arena_message(arena, &fsdp__list_reply__descriptor);

	if (!pb)
		return NULL;
	/* Not "&from->items->place", as there may be none. */
	pb->places = places_build((const void *)from->items,
				  sizeof(*from->items), from->n_items, arena);
	pb->n_items = from->n_items;
	pb->items = pb_arena_messages(arena, &fsdp__list_item__descriptor,
				      from->n_items);
	if (!pb->places || !pb->items)
		return NULL;
	for (uint32_t i = 0; i < from->n_items; i++)
		build_list_item(&from->items[i], pb->items[i]);
	pb->next_cursor = from->next_cursor;
	return pb;
}
static int take_state(uint32_t state, uint32_t *ret, struct error *err)
{
	if (state > MAX_STATE)
		return error_set(err, -EPROTO, "there is no state %u", state);
	*ret = state;
	return 0;
}

static int take_list_item(const Fsdp__ListItem *pb, struct list_item *to,
			  struct error *err)
{
	int r = access_take(pb->uid, pb->gid, pb->mode, &to->access, err);

	if (r < 0)
		return r;
	r = take_state(pb->state, &to->state, err);
	if (r < 0)
		return r;
	to->age_ms = pb->age_ms;
	to->ttl_left_ms = pb->ttl_left_ms;
	to->n_holders = pb->n_holders;
	to->bundle = pb->bundle;
	r = device_take(pb->device, &to->device, err);
	if (r < 0)
		return r;
	if (pb->shared > SHARE_MAX)
		return error_set(err, -EPROTO,
				 "there is no kind %u of shared memory",
				 pb->shared);
	to->shared = pb->shared;
	to->block = pb->block;
	to->block_bytes = pb->block_bytes;
	to->block_slots = pb->block_slots;
	to->maker_pid = pb->maker_pid;
	to->payer_uid = pb->payer_uid;
	to->n_tickets = pb->n_tickets;
	to->is_collective = pb->is_collective;
	if (pb->bundle_name_size > strlen(to->place.name))
		return error_set(err, -EPROTO,
				 "the bundle's name is longer than its "
				 "member's");
	to->bundle_name_size = pb->bundle_name_size;
	return flags_take(pb->flags, PUBLISH_ALL, &to->flags, err);
}

static int take_list(const void *body, struct room *room, void *ret,
		     struct error *err)
{
	const Fsdp__ListReply *pb = body;
	struct list_reply *to = &((struct reply *)ret)->list;
	size_t n, size;
	int r = places_count(pb->places, MESSAGE_MAX_ITEMS, &n, err);

	if (r < 0)
		return r;
	if (n != pb->n_items)
		return error_set(err, -EPROTO, "%zu items for %zu places",
				 pb->n_items, n);
	size = n * sizeof(*to->items);
	r = room_open(room, size, 1, err);
	if (r < 0)
		return r;
	to->n_items = (uint32_t)n;
	to->next_cursor = pb->next_cursor;
	to->items = room_array(room, size);
	r = places_take(pb->places, sizeof(*to->items), room, (void *)to->items,
			err);
	if (r < 0)
		return r;
	for (size_t i = 0; i < n; i++) {
		r = take_list_item(pb->items[i], &to->items[i], err);
		if (r < 0)
			return error_wrap(err, r, "entries[%zu]", i);
	}
	return 0;
}

static void build_ticket_item(const struct ticket_item *from,
			      Fsdp__TicketItem *pb)
{
	pb->id = from->id;
	pb->slot = from->ref.slot;
	pb->generation = from->ref.generation;
	pb->name = bytes_from_text(from->name);
	pb->block_bytes = from->block_bytes;
	pb->uid = from->uid;
	pb->pid = from->pid;
	pb->uses_left = from->uses_left;
	pb->age_ms = from->age_ms;
	pb->ttl_left_ms = from->ttl_left_ms;
}

static void *build_tickets(const void *message, struct pb_arena *arena)
{
	const struct tickets_reply *from =
		&((const struct reply *)message)->tickets;
	Fsdp__TicketsReply *pb =
		pb_arena_message(arena, &fsdp__tickets_reply__descriptor);

	if (!pb)
		return NULL;
	pb->n_items = from->n_items;
	pb->items = pb_arena_messages(arena, &fsdp__ticket_item__descriptor,
				      from->n_items);
	if (!pb->items)
		return NULL;
	for (uint32_t i = 0; i < from->n_items; i++)
		build_ticket_item(&from->items[i], pb->items[i]);
	pb->next_cursor = from->next_cursor;
	return pb;
}

static int take_ticket_item(const Fsdp__TicketItem *pb, struct room *room,
			    struct ticket_item *to, struct error *err)
{
	int r = name_take(pb->name, NAME_OF_TENSOR_OR_NONE, room, &to->name,
			  err);

	if (r < 0)
		return r;
	to->id = pb->id;
	to->block_bytes = pb->block_bytes;
	to->uid = pb->uid;
	to->pid = pb->pid;
	to->uses_left = pb->uses_left;
	to->age_ms = pb->age_ms;
	to->ttl_left_ms = pb->ttl_left_ms;
	return ref_take(pb->slot, pb->generation, &to->ref, err);
}

static int take_tickets(const void *body, struct room *room, void *ret,
			struct error *err)
{
	const Fsdp__TicketsReply *pb = body;
	struct tickets_reply *to = &((struct reply *)ret)->tickets;
	int r = page_open(room, pb->n_items, sizeof(*to->items), pb->n_items,
			  (void **)&to->items, err);

	if (r < 0)
		return r;
	to->next_cursor = pb->next_cursor;
	to->n_items = (uint32_t)pb->n_items;
	for (size_t i = 0; r == 0 && i < pb->n_items; i++)
		r = take_ticket_item(pb->items[i], room, &to->items[i], err);
	return r;
}

static void build_holder(const struct holder *from, Fsdp__Holder *pb)
{
	pb->session = from->session;
	pb->pid = from->pid;
	pb->uid = from->uid;
	pb->command = bytes_from_text(from->command);
	pb->holds = from->holds;
	pb->is_connected = from->is_connected;
	pb->is_writer = from->is_writer;
}

static void *build_who(const void *message, struct pb_arena *arena)
{
	const struct who_reply *from = &((const struct reply *)message)->who;
	Fsdp__WhoReply *pb =
		pb_arena_message(arena, &fsdp__who_reply__descriptor);

	if (!pb)
		return NULL;
	pb->places = places_build(&from->place, sizeof(from->place), 1, arena);
	pb->state = from->state;
	pb->n_tickets = from->n_tickets;
	pb->n_holders = from->n_holders;
	pb->holders = pb_arena_messages(arena, &fsdp__holder__descriptor,
					from->n_holders);
	if (!pb->places || !pb->holders)
		return NULL;
	for (uint32_t i = 0; i < from->n_holders; i++)
		build_holder(&from->holders[i], pb->holders[i]);
	pb->next_cursor = from->next_cursor;
	return pb;
}

static int take_holder(const Fsdp__Holder *pb, struct room *room,
		       struct holder *to, struct error *err)
{
	to->session = pb->session;
	to->pid = pb->pid;
	to->uid = pb->uid;
	to->holds = pb->holds;
	to->is_connected = pb->is_connected;
	to->is_writer = pb->is_writer;
	return text_take(pb->command, MESSAGE_MAX_TEXT, "command", room,
			 &to->command, err);
}

static int take_who_place(const Fsdp__WhoReply *pb, struct room *room,
			  struct who_reply *to, struct error *err)
{
	size_t n;
	int r = places_count(pb->places, 1, &n, err);

	if (r < 0)
		return r;
	if (n != 1)
		return error_set(err, -EPROTO, "the place is missing");
	r = take_state(pb->state, &to->state, err);
	if (r < 0)
		return r;
	return places_take(pb->places, sizeof(to->place), room, &to->place,
			   err);
}

static int take_who(const void *body, struct room *room, void *ret,
		    struct error *err)
{
	const Fsdp__WhoReply *pb = body;
	struct who_reply *to = &((struct reply *)ret)->who;
	int r = page_open(room, pb->n_holders, sizeof(*to->holders),
			  pb->n_holders + 1, (void **)&to->holders, err);

	if (r < 0)
		return r;
	to->n_tickets = pb->n_tickets;
	to->next_cursor = pb->next_cursor;
	to->n_holders = (uint32_t)pb->n_holders;
	r = take_who_place(pb, room, to, err);
	for (size_t i = 0; r == 0 && i < pb->n_holders; i++)
		r = take_holder(pb->holders[i], room, &to->holders[i], err);
	return r;
}

static void build_client(const struct client_item *from, Fsdp__ClientItem *pb)
{
	pb->session = from->session;
	pb->pid = from->pid;
	pb->uid = from->uid;
	pb->command = bytes_from_text(from->command);
	pb->is_connected = from->is_connected;
	pb->n_slots = from->n_slots;
	pb->n_bytes = from->n_bytes;
	pb->n_requests = from->n_requests;
	pb->age_ms = from->age_ms;
	pb->n_waiting = from->n_waiting;
}

static void *build_clients(const void *message, struct pb_arena *arena)
{
	const struct clients_reply *from =
		&((const struct reply *)message)->clients;
	Fsdp__ClientsReply *pb =
		pb_arena_message(arena, &fsdp__clients_reply__descriptor);

	if (!pb)
		return NULL;
	pb->n_items = from->n_items;
	pb->items = pb_arena_messages(arena, &fsdp__client_item__descriptor,
				      from->n_items);
	if (!pb->items)
		return NULL;
	for (uint32_t i = 0; i < from->n_items; i++)
		build_client(&from->items[i], pb->items[i]);
	pb->next_cursor = from->next_cursor;
	return pb;
}

static int take_client(const Fsdp__ClientItem *pb, struct room *room,
		       struct client_item *to, struct error *err)
{
	to->session = pb->session;
	to->pid = pb->pid;
	to->uid = pb->uid;
	to->is_connected = pb->is_connected;
	to->n_slots = pb->n_slots;
	to->n_bytes = pb->n_bytes;
	to->n_requests = pb->n_requests;
	to->age_ms = pb->age_ms;
	to->n_waiting = pb->n_waiting;
	return text_take(pb->command, MESSAGE_MAX_TEXT, "command", room,
			 &to->command, err);
}

static int take_clients(const void *body, struct room *room, void *ret,
			struct error *err)
{
	const Fsdp__ClientsReply *pb = body;
	struct clients_reply *to = &((struct reply *)ret)->clients;
	int r = page_open(room, pb->n_items, sizeof(*to->items), pb->n_items,
			  (void **)&to->items, err);

	if (r < 0)
		return r;
	to->next_cursor = pb->next_cursor;
	to->n_items = (uint32_t)pb->n_items;
	for (size_t i = 0; r == 0 && i < pb->n_items; i++)
		r = take_client(pb->items[i], room, &to->items[i], err);
	return r;
}

static void build_prefix(const struct prefix_item *from, Fsdp__PrefixItem *pb)
{
	pb->name = bytes_from_text(from->name);
	pb->uid = from->uid;
	pb->n_names = from->n_names;
	pb->n_bundles = from->n_bundles;
	pb->is_configured = from->is_configured;
	pb->left_ms = from->left_ms;
}

static void *build_prefixes(const void *message, struct pb_arena *arena)
{
	const struct prefixes_reply *from =
		&((const struct reply *)message)->prefixes;
	Fsdp__PrefixesReply *pb =
		pb_arena_message(arena, &fsdp__prefixes_reply__descriptor);

	if (!pb)
		return NULL;
	pb->n_items = from->n_items;
	pb->items = pb_arena_messages(arena, &fsdp__prefix_item__descriptor,
				      from->n_items);
	if (!pb->items)
		return NULL;
	for (uint32_t i = 0; i < from->n_items; i++)
		build_prefix(&from->items[i], pb->items[i]);
	pb->next_cursor = from->next_cursor;
	return pb;
}

static int take_prefix(const Fsdp__PrefixItem *pb, struct room *room,
		       struct prefix_item *to, struct error *err)
{
	to->uid = pb->uid;
	to->n_names = pb->n_names;
	to->n_bundles = pb->n_bundles;
	to->is_configured = pb->is_configured;
	to->left_ms = pb->left_ms;
	return name_take(pb->name, NAME_OF_TENSOR, room, &to->name, err);
}

static int take_prefixes(const void *body, struct room *room, void *ret,
			 struct error *err)
{
	const Fsdp__PrefixesReply *pb = body;
	struct prefixes_reply *to = &((struct reply *)ret)->prefixes;
	int r = page_open(room, pb->n_items, sizeof(*to->items), pb->n_items,
			  (void **)&to->items, err);

	if (r < 0)
		return r;
	to->next_cursor = pb->next_cursor;
	to->n_items = (uint32_t)pb->n_items;
	for (size_t i = 0; r == 0 && i < pb->n_items; i++)
		r = take_prefix(pb->items[i], room, &to->items[i], err);
	return r;
}

static void *build_status(const void *message, struct pb_arena *arena)
{
	const struct status_reply *from =
		&((const struct reply *)message)->status;
	Fsdp__StatusReply *pb =
		pb_arena_message(arena, &fsdp__status_reply__descriptor);

	if (!pb)
		return NULL;
	pb->version = bytes_from_text(from->version);
	pb->note = bytes_from_text(from->note);
	pb->n_values = from->n_values;
	pb->values = pb_arena_messages(arena, &fsdp__status_value__descriptor,
				       from->n_values);
	if (!pb->values)
		return NULL;
	for (uint32_t i = 0; i < from->n_values; i++) {
		pb->values[i]->name = bytes_from_text(from->values[i].name);
		pb->values[i]->value = from->values[i].value;
	}
	return pb;
}

static int take_status_texts(const Fsdp__StatusReply *pb, struct room *room,
			     struct status_reply *to, struct error *err)
{
	int r = text_take(pb->version, MESSAGE_MAX_TEXT, "version", room,
			  &to->version, err);

	if (r < 0)
		return r;
	return text_take(pb->note, MESSAGE_MAX_NOTE, "note", room, &to->note,
			 err);
}

static int take_status(const void *body, struct room *room, void *ret,
		       struct error *err)
{
	const Fsdp__StatusReply *pb = body;
	struct status_reply *to = &((struct reply *)ret)->status;
	int r = page_open(room, pb->n_values, sizeof(*to->values),
			  pb->n_values + 2, (void **)&to->values, err);

	if (r < 0)
		return r;
	to->n_values = (uint32_t)pb->n_values;
	r = take_status_texts(pb, room, to, err);
	for (size_t i = 0; r == 0 && i < pb->n_values; i++) {
		to->values[i].value = pb->values[i]->value;
		r = text_take(pb->values[i]->name, MESSAGE_MAX_TEXT,
			      "name of a value", room, &to->values[i].name,
			      err);
	}
	return r;
}

static void *build_timelines(const void *message, struct pb_arena *arena)
{
	const struct reply *from = message;
	Fsdp__TimelinesReply *pb =
		pb_arena_message(arena, &fsdp__timelines_reply__descriptor);

	if (!pb)
		return NULL;
	pb->session = from->timelines.session;
	if (from->timelines.has_event)
		pb->event = bytes_from_handle(from->timelines.event);
	return pb;
}

static int take_timelines(const void *body, struct room *room, void *ret,
			  struct error *err)
{
	const Fsdp__TimelinesReply *pb = body;
	struct timelines_reply *to = &((struct reply *)ret)->timelines;

	(void)room;
	if (pb->session == 0)
		return error_set(err, -EPROTO, "it does not say whose");
	to->session = pb->session;
	return handle_take(pb->event, &to->has_event, to->event, err);
}

#define EMPTY                                                                  \
	{                                                                      \
		&fsdp__empty__descriptor, NULL, NULL                           \
	}
#define CODEC(noun)                                                            \
	{                                                                      \
		&fsdp__##noun##_reply__descriptor, build_##noun, take_##noun   \
	}

const struct codec reply_codecs[MESSAGE_MAX + 1] = {
	[MESSAGE_HELLO] = CODEC(hello),
	[MESSAGE_CHALLENGE] = CODEC(hello),
	[MESSAGE_GOODBYE] = EMPTY,
	[MESSAGE_PING] = EMPTY,
	[MESSAGE_ALLOC] = CODEC(places),
	[MESSAGE_PUBLISH] = CODEC(versions),
	[MESSAGE_GET] = CODEC(places),
	[MESSAGE_RELEASE] = EMPTY,
	[MESSAGE_REMOVE] = EMPTY,
	[MESSAGE_TICKET] = CODEC(ticket),
	[MESSAGE_REDEEM] = CODEC(places),
	[MESSAGE_BUNDLE_BEGIN] = CODEC(bundle),
	[MESSAGE_BUNDLE_COMMIT] = CODEC(bundle),
	[MESSAGE_BUNDLE_ABORT] = EMPTY,
	[MESSAGE_BUNDLE_GET] = CODEC(bundle_get),
	[MESSAGE_CHUNK] = CODEC(chunks),
	[MESSAGE_LIST] = CODEC(list),
	[MESSAGE_WHO] = CODEC(who),
	[MESSAGE_CLIENTS] = CODEC(clients),
	[MESSAGE_PREFIXES] = CODEC(prefixes),
	[MESSAGE_STATUS] = CODEC(status),
	[MESSAGE_TIMELINES] = CODEC(timelines),
	[MESSAGE_ORDERED] = EMPTY,
	[MESSAGE_TICKETS] = CODEC(tickets),
	[MESSAGE_REVOKE] = EMPTY,
	[MESSAGE_INPUT] = CODEC(places),
	[MESSAGE_WAIT] = CODEC(places),
	[MESSAGE_SHARE] = CODEC(places),
	[MESSAGE_UNSHARE] = EMPTY,
};

const struct codec error_codec = {&fsdp__error__descriptor, build_error,
				  take_error};
const struct codec manifest_codec = {&fsdp__places_reply__descriptor,
				     build_places, NULL};
