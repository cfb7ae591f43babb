/*
 * Every request, to protobuf and back; both directions of one message stand
 * side by side. Those that make tensors are in message_alloc.c.
 *
 * The build functions borrow from the request, the take functions check all
 * that can be checked without knowing the broker's state.
 */
#include "proto/message_pb.h"

#include "proto/error.h"
#include "proto/frame.h"
#include "proto/name.h"
#include <errno.h>
#include <string.h>

static void *build_hello(const void *message, struct pb_arena *arena)
{
	const struct hello_request *from =
		&((const struct request *)message)->hello;
	Fsdp__HelloRequest *pb =
		pb_arena_message(arena, &fsdp__hello_request__descriptor);

	if (!pb)
		return NULL;
	pb->major = from->major;
	pb->minor = from->minor;
	pb->budget = from->budget;
	if (from->is_reconnect) {
		pb->is_reconnect = true;
		pb->session = from->session;
		pb->token.data = (uint8_t *)(uintptr_t)from->token;
		pb->token.len = sizeof(from->token);
	}
	return pb;
}

static int take_hello(const void *body, struct room *room, void *ret,
		      struct error *err)
{
	const Fsdp__HelloRequest *pb = body;
	struct hello_request *to = &((struct request *)ret)->hello;

	(void)room;
	to->major = pb->major;
	to->minor = pb->minor;
	to->budget = pb->budget;
	if (!pb->is_reconnect)
		return 0;
	if (pb->session == 0)
		return error_set(err, -EINVAL,
				 "a reconnect does not say its session");
	to->is_reconnect = true;
	to->session = pb->session;
	return secret_take(pb->token, sizeof(to->token), "session token",
			   to->token, err);
}

static void *build_challenge(const void *message, struct pb_arena *arena)
{
	const struct request *from = message;
	Fsdp__ChallengeRequest *pb =
		pb_arena_message(arena, &fsdp__challenge_request__descriptor);

	if (pb)
		pb->nonce = from->challenge.nonce;
	return pb;
}

static int take_challenge(const void *body, struct room *room, void *ret,
			  struct error *err)
{
	const Fsdp__ChallengeRequest *pb = body;

	(void)room;
	(void)err;
	((struct request *)ret)->challenge.nonce = pb->nonce;
	return 0;
}

static void *build_publish(const void *message, struct pb_arena *arena)
{
	const struct publish_request *from =
		&((const struct request *)message)->publish;
	Fsdp__PublishRequest *pb =
		pb_arena_message(arena, &fsdp__publish_request__descriptor);

	if (!pb)
		return NULL;
	pb->n_items = from->n_items;
	pb->items = pb_arena_messages(arena, &fsdp__publish_item__descriptor,
				      from->n_items);
	if (!pb->items)
		return NULL;
	for (uint32_t i = 0; i < from->n_items; i++) {
		pb->items[i]->slot = from->items[i].ref.slot;
		pb->items[i]->generation = from->items[i].ref.generation;
		pb->items[i]->name = bytes_from_text(from->items[i].name);
		pb->items[i]->flags = from->items[i].flags;
		pb->items[i]->ttl_ms = from->items[i].ttl_ms;
		pb->items[i]->timeline = from->items[i].timeline;
		pb->items[i]->value = from->items[i].value;
		if (from->items[i].event)
			pb->items[i]->event =
				bytes_from_handle(from->items[i].event);
	}
	return pb;
}

/* When it is written: by a timeline or by an event. */
static int take_publish_order(const Fsdp__PublishItem *pb, struct room *room,
			      struct publish_item *to, struct error *err)
{
	bool has_event;
	uint8_t event[MESSAGE_HANDLE_SIZE];
	int r = handle_take(pb->event, &has_event, event, err);

	if (r < 0)
		return r;
	if (has_event && (pb->timeline || pb->value))
		return error_set(err, -EINVAL,
				 "it is ordered by a timeline and by an event; "
				 "one of them it can be");
	to->event = has_event ? (uint8_t *)room_text(room, event, sizeof(event))
			      : NULL;
	to->timeline = pb->timeline;
	to->value = pb->value;
	return order_check(pb->timeline, pb->value, err);
}

static int take_publish_item(const Fsdp__PublishItem *pb, struct room *room,
			     struct publish_item *to, struct error *err)
{
	int r = ref_take(pb->slot, pb->generation, &to->ref, err);

	if (r < 0)
		return r;
	r = name_take(pb->name, NAME_OF_TENSOR_OR_NONE, room, &to->name, err);
	if (r < 0)
		return r;
	r = flags_take(pb->flags, PUBLISH_ALL, &to->flags, err);
	if (r < 0)
		return r;
	r = take_publish_order(pb, room, to, err);
	if (r < 0)
		return r;
	return ttl_take(pb->ttl_ms, &to->ttl_ms, err);
}

static int take_publish(const void *body, struct room *room, void *ret,
			struct error *err)
{
	const Fsdp__PublishRequest *pb = body;
	struct publish_request *to = &((struct request *)ret)->publish;
	size_t size = pb->n_items * sizeof(*to->items);
	int r = count_check(pb->n_items, MESSAGE_MAX_ITEMS, "tensors", err);

	if (r < 0)
		return r;
	r = room_open(room, size, 2 * pb->n_items, err);
	if (r < 0)
		return r;
	to->n_items = (uint32_t)pb->n_items;
	to->items = room_array(room, size);
	for (size_t i = 0; i < pb->n_items; i++) {
		r = take_publish_item(pb->items[i], room, &to->items[i], err);
		if (r < 0)
			return error_wrap(err, r, "publications[%zu]", i);
	}
	return 0;
}

/* NULL: no heap. */
static ProtobufCBinaryData *build_names(const char *const *names, uint32_t n,
					struct pb_arena *arena)
{
	ProtobufCBinaryData *pb = pb_arena_alloc(arena, n, sizeof(*pb));

	for (uint32_t i = 0; pb && i < n; i++)
		pb[i] = bytes_from_text(names[i]);
	return pb;
}

static void *build_get(const void *message, struct pb_arena *arena)
{
	const struct get_request *from =
		&((const struct request *)message)->get;
	Fsdp__GetRequest *pb =
		pb_arena_message(arena, &fsdp__get_request__descriptor);

	if (!pb)
		return NULL;
	pb->timeout_ms = from->timeout_ms;
	pb->is_trust_set = from->is_trust_set;
	pb->trusted_uid = from->is_trust_set ? from->trusted_uid : 0;
	pb->newer_than = from->newer_than;
	pb->n_names = from->n_names;
	pb->names = build_names(from->names, from->n_names, arena);
	return pb->names ? pb : NULL;
}

static int take_get(const void *body, struct room *room, void *ret,
		    struct error *err)
{
	const Fsdp__GetRequest *pb = body;
	struct get_request *to = &((struct request *)ret)->get;
	int r = timeout_take(pb->timeout_ms, &to->timeout_ms, err);

	if (r < 0)
		return r;
	to->is_trust_set = pb->is_trust_set;
	to->trusted_uid = pb->is_trust_set ? pb->trusted_uid : 0;
	to->newer_than = pb->newer_than;
	r = names_take(pb->n_names, pb->names, NAME_OF_TENSOR, room, &to->names,
		       err);
	if (r < 0)
		return r;
	to->n_names = (uint32_t)pb->n_names;
	return 0;
}

static void *build_release(const void *message, struct pb_arena *arena)
{
	const struct release_request *from =
		&((const struct request *)message)->release;
	Fsdp__ReleaseRequest *pb =
		pb_arena_message(arena, &fsdp__release_request__descriptor);

	if (!pb)
		return NULL;
	pb->n_items = from->n_items;
	pb->items = pb_arena_messages(arena, &fsdp__release_item__descriptor,
				      from->n_items);
	if (!pb->items)
		return NULL;
	for (uint32_t i = 0; i < from->n_items; i++) {
		pb->items[i]->slot = from->items[i].ref.slot;
		pb->items[i]->generation = from->items[i].ref.generation;
		pb->items[i]->n_holds = from->items[i].n_holds;
	}
	return pb;
}

static int take_release_item(const Fsdp__ReleaseItem *pb,
			     struct release_item *to, struct error *err)
{
	/* Holds are summed as signed 32-bit numbers. */
	if (pb->n_holds == 0 || pb->n_holds > INT32_MAX)
		return error_set(err, -EINVAL, "%u holds cannot be released",
				 pb->n_holds);
	to->n_holds = pb->n_holds;
	return ref_take(pb->slot, pb->generation, &to->ref, err);
}

static int take_release(const void *body, struct room *room, void *ret,
			struct error *err)
{
	const Fsdp__ReleaseRequest *pb = body;
	struct release_request *to = &((struct request *)ret)->release;
	size_t size = pb->n_items * sizeof(*to->items);
	int r = count_check(pb->n_items, MESSAGE_MAX_ITEMS, "tensors", err);

	if (r < 0)
		return r;
	r = room_open(room, size, 0, err);
	if (r < 0)
		return r;
	to->n_items = (uint32_t)pb->n_items;
	to->items = room_array(room, size);
	for (size_t i = 0; i < pb->n_items; i++) {
		r = take_release_item(pb->items[i], &to->items[i], err);
		if (r < 0)
			return error_wrap(err, r, "tensors[%zu]", i);
	}
	return 0;
}

static void *build_remove(const void *message, struct pb_arena *arena)
{
	const struct remove_request *from =
		&((const struct request *)message)->remove;
	Fsdp__RemoveRequest *pb =
		pb_arena_message(arena, &fsdp__remove_request__descriptor);

	if (!pb)
		return NULL;
	pb->n_names = from->n_names;
	pb->names = build_names(from->names, from->n_names, arena);
	return pb->names ? pb : NULL;
}

static int take_remove(const void *body, struct room *room, void *ret,
		       struct error *err)
{
	const Fsdp__RemoveRequest *pb = body;
	struct remove_request *to = &((struct request *)ret)->remove;
	int r = names_take(pb->n_names, pb->names, NAME_OF_ANY, room,
			   &to->names, err);

	if (r < 0)
		return r;
	to->n_names = (uint32_t)pb->n_names;
	return 0;
}

static void *build_ticket(const void *message, struct pb_arena *arena)
{
	const struct ticket_request *from =
		&((const struct request *)message)->ticket;
	Fsdp__TicketRequest *pb =
		pb_arena_message(arena, &fsdp__ticket_request__descriptor);

	if (!pb)
		return NULL;
	pb->slot = from->ref.slot;
	pb->generation = from->ref.generation;
	pb->n_uses = from->n_uses;
	pb->ttl_ms = from->ttl_ms;
	return pb;
}

static int take_ticket(const void *body, struct room *room, void *ret,
		       struct error *err)
{
	const Fsdp__TicketRequest *pb = body;
	struct ticket_request *to = &((struct request *)ret)->ticket;
	int r = ref_take(pb->slot, pb->generation, &to->ref, err);

	(void)room;
	if (r < 0)
		return r;
	if (pb->n_uses == 0 || pb->ttl_ms == 0)
		return error_set(err, -EINVAL,
				 "a ticket needs a number of uses and a time "
				 "to live, both above 0");
	to->n_uses = pb->n_uses;
	return ttl_take(pb->ttl_ms, &to->ttl_ms, err);
}

static void *build_tickets(const void *message, struct pb_arena *arena)
{
	const struct request *from = message;
	Fsdp__TicketsRequest *pb =
		pb_arena_message(arena, &fsdp__tickets_request__descriptor);

	if (pb)
		pb->cursor = from->tickets.cursor;
	return pb;
}

static int take_tickets(const void *body, struct room *room, void *ret,
			struct error *err)
{
	const Fsdp__TicketsRequest *pb = body;

	(void)room;
	(void)err;
	((struct request *)ret)->tickets.cursor = pb->cursor;
	return 0;
}

static void *build_revoke(const void *message, struct pb_arena *arena)
{
	const struct request *from = message;
	Fsdp__RevokeRequest *pb =
		pb_arena_message(arena, &fsdp__revoke_request__descriptor);

	if (pb)
		pb->ticket = from->revoke.ticket;
	return pb;
}

static int take_revoke(const void *body, struct room *room, void *ret,
		       struct error *err)
{
	const Fsdp__RevokeRequest *pb = body;

	(void)room;
	(void)err;
	((struct request *)ret)->revoke.ticket = pb->ticket;
	return 0;
}

static void *build_redeem(const void *message, struct pb_arena *arena)
{
	const struct redeem_request *from =
		&((const struct request *)message)->redeem;
	Fsdp__RedeemRequest *pb =
		pb_arena_message(arena, &fsdp__redeem_request__descriptor);

	if (!pb)
		return NULL;
	pb->tickets.len = (size_t)from->n_tickets * TICKET_SIZE;
	pb->tickets.data = (uint8_t *)(uintptr_t)from->tickets;
	return pb;
}

static int take_redeem(const void *body, struct room *room, void *ret,
		       struct error *err)
{
	const Fsdp__RedeemRequest *pb = body;
	struct redeem_request *to = &((struct request *)ret)->redeem;
	size_t size = pb->tickets.len, n = size / TICKET_SIZE;
	void *tickets;
	int r;

	if (size % TICKET_SIZE != 0)
		return error_set(err, -EINVAL,
				 "%zu bytes are no number of tickets; each has "
				 "%d",
				 size, TICKET_SIZE);
	r = count_check(n, MESSAGE_MAX_ITEMS, "tickets", err);
	if (r < 0)
		return r;
	r = room_open(room, size, 0, err);
	if (r < 0)
		return r;
	tickets = room_array(room, size);
	memcpy(tickets, pb->tickets.data, size);
	to->tickets = tickets;
	to->n_tickets = (uint32_t)n;
	return 0;
}

static void *build_bundle_begin(const void *message, struct pb_arena *arena)
{
	const struct bundle_begin_request *from =
		&((const struct request *)message)->bundle_begin;
	Fsdp__BundleBeginRequest *pb = pb_arena_message(
		arena, &fsdp__bundle_begin_request__descriptor);

	if (!pb)
		return NULL;
	pb->name = bytes_from_text(from->name);
	pb->gid = from->access.gid;
	pb->mode = from->access.mode;
	pb->size_hint = from->size_hint;
	pb->flags = from->flags;
	pb->ttl_ms = from->ttl_ms;
	pb->device = bytes_from_device(&from->device);
	return pb;
}

static int take_bundle_begin(const void *body, struct room *room, void *ret,
			     struct error *err)
{
	const Fsdp__BundleBeginRequest *pb = body;
	struct bundle_begin_request *to =
		&((struct request *)ret)->bundle_begin;
	int r = room_open(room, 0, 1, err);

	if (r < 0)
		return r;
	r = name_take(pb->name, NAME_OF_BUNDLE, room, &to->name, err);
	if (r < 0)
		return r;
	r = access_take(0, pb->gid, pb->mode, &to->access, err);
	if (r < 0)
		return r;
	r = size_take(pb->size_hint, "size of a bundle", &to->size_hint, err);
	if (r < 0)
		return r;
	r = device_take(pb->device, &to->device, err);
	if (r < 0)
		return r;
	r = flags_take(pb->flags, PUBLISH_ALL & ~PUBLISH_EVICTABLE, &to->flags,
		       err);
	if (r < 0)
		return r;
	return ttl_take(pb->ttl_ms, &to->ttl_ms, err);
}

static void *build_bundle_end(const void *message, struct pb_arena *arena)
{
	const struct request *from = message;
	Fsdp__BundleEndRequest *pb =
		pb_arena_message(arena, &fsdp__bundle_end_request__descriptor);

	if (pb)
		pb->bundle = from->bundle_end.bundle;
	return pb;
}

static int take_bundle_end(const void *body, struct room *room, void *ret,
			   struct error *err)
{
	const Fsdp__BundleEndRequest *pb = body;

	(void)room;
	if (pb->bundle == 0)
		return error_set(err, -EINVAL, "it does not say which bundle");
	((struct request *)ret)->bundle_end.bundle = pb->bundle;
	return 0;
}

static void *build_bundle_get(const void *message, struct pb_arena *arena)
{
	const struct bundle_get_request *from =
		&((const struct request *)message)->bundle_get;
	Fsdp__BundleGetRequest *pb =
		pb_arena_message(arena, &fsdp__bundle_get_request__descriptor);

	if (!pb)
		return NULL;
	pb->name = bytes_from_text(from->name);
	pb->timeout_ms = from->timeout_ms;
	pb->is_trust_set = from->is_trust_set;
	pb->trusted_uid = from->is_trust_set ? from->trusted_uid : 0;
	pb->newer_than = from->newer_than;
	return pb;
}

static int take_bundle_get(const void *body, struct room *room, void *ret,
			   struct error *err)
{
	const Fsdp__BundleGetRequest *pb = body;
	struct bundle_get_request *to = &((struct request *)ret)->bundle_get;
	int r = room_open(room, 0, 1, err);

	if (r < 0)
		return r;
	r = name_take(pb->name, NAME_OF_BUNDLE, room, &to->name, err);
	if (r < 0)
		return r;
	to->is_trust_set = pb->is_trust_set;
	to->trusted_uid = pb->is_trust_set ? pb->trusted_uid : 0;
	to->newer_than = pb->newer_than;
	return timeout_take(pb->timeout_ms, &to->timeout_ms, err);
}

static void *build_chunk(const void *message, struct pb_arena *arena)
{
	const struct request *from = message;
	Fsdp__ChunkRequest *pb =
		pb_arena_message(arena, &fsdp__chunk_request__descriptor);

	if (!pb)
		return NULL;
	pb->n_chunks = from->chunk.n_chunks;
	pb->chunks = from->chunk.chunks;
	return pb;
}

static int take_chunk(const void *body, struct room *room, void *ret,
		      struct error *err)
{
	const Fsdp__ChunkRequest *pb = body;
	struct chunk_request *to = &((struct request *)ret)->chunk;
	size_t size = pb->n_chunks * sizeof(*to->chunks);
	int r = count_check(pb->n_chunks, FRAME_MAX_FDS, "chunks", err);

	if (r < 0)
		return r;
	for (size_t i = 0; i < pb->n_chunks; i++) {
		if (pb->chunks[i] == 0)
			return error_set(err, -EINVAL,
					 "0 is the number of no chunk");
	}
	r = room_open(room, size, 0, err);
	if (r < 0)
		return r;
	to->n_chunks = (uint32_t)pb->n_chunks;
	to->chunks = room_array(room, size);
	memcpy(to->chunks, pb->chunks, size);
	return 0;
}

static void *build_list(const void *message, struct pb_arena *arena)
{
	const struct list_request *from =
		&((const struct request *)message)->list;
	Fsdp__ListRequest *pb =
		pb_arena_message(arena, &fsdp__list_request__descriptor);

	if (!pb)
		return NULL;
	pb->prefix = bytes_from_text(from->prefix);
	pb->filter = from->filter;
	pb->cursor = from->cursor;
	return pb;
}

static int take_list(const void *body, struct room *room, void *ret,
		     struct error *err)
{
	const Fsdp__ListRequest *pb = body;
	struct list_request *to = &((struct request *)ret)->list;
	int r = room_open(room, 0, 1, err);

	if (r < 0)
		return r;
	/* Not a name: a prefix may end anywhere. */
	r = text_take(pb->prefix, NAME_MAX_SIZE, "prefix", room, &to->prefix,
		      err);
	if (r < 0)
		return r;
	if (pb->filter < LIST_NAMED || pb->filter > LIST_CHARGED)
		return error_set(err, -EINVAL, "there is no filter %u",
				 pb->filter);
	to->filter = pb->filter;
	to->cursor = pb->cursor;
	return 0;
}

static void *build_who(const void *message, struct pb_arena *arena)
{
	const struct who_request *from =
		&((const struct request *)message)->who;
	Fsdp__WhoRequest *pb =
		pb_arena_message(arena, &fsdp__who_request__descriptor);

	if (!pb)
		return NULL;
	pb->name = bytes_from_text(from->name);
	if (pb->name.len == 0) {
		pb->slot = from->ref.slot;
		pb->generation = from->ref.generation;
	}
	pb->cursor = from->cursor;
	return pb;
}

static int take_who(const void *body, struct room *room, void *ret,
		    struct error *err)
{
	const Fsdp__WhoRequest *pb = body;
	struct who_request *to = &((struct request *)ret)->who;
	int r = room_open(room, 0, 1, err);

	if (r < 0)
		return r;
	to->cursor = pb->cursor;
	r = name_take(pb->name, NAME_OF_TENSOR_OR_NONE, room, &to->name, err);
	if (r < 0 || to->name[0])
		return r;
	return ref_take(pb->slot, pb->generation, &to->ref, err);
}

static void *build_clients(const void *message, struct pb_arena *arena)
{
	const struct request *from = message;
	Fsdp__ClientsRequest *pb =
		pb_arena_message(arena, &fsdp__clients_request__descriptor);

	if (pb)
		pb->cursor = from->clients.cursor;
	return pb;
}

static int take_clients(const void *body, struct room *room, void *ret,
			struct error *err)
{
	const Fsdp__ClientsRequest *pb = body;

	(void)room;
	(void)err;
	((struct request *)ret)->clients.cursor = pb->cursor;
	return 0;
}

static void *build_status(const void *message, struct pb_arena *arena)
{
	const struct request *from = message;
	Fsdp__StatusRequest *pb =
		pb_arena_message(arena, &fsdp__status_request__descriptor);

	if (pb)
		pb->resets = from->status.resets;
	return pb;
}

static int take_status(const void *body, struct room *room, void *ret,
		       struct error *err)
{
	const Fsdp__StatusRequest *pb = body;

	(void)room;
	(void)err;
	((struct request *)ret)->status.resets = pb->resets;
	return 0;
}

static void *build_prefixes(const void *message, struct pb_arena *arena)
{
	const struct request *from = message;
	Fsdp__PrefixesRequest *pb =
		pb_arena_message(arena, &fsdp__prefixes_request__descriptor);

	if (pb)
		pb->cursor = from->prefixes.cursor;
	return pb;
}

static int take_prefixes(const void *body, struct room *room, void *ret,
			 struct error *err)
{
	const Fsdp__PrefixesRequest *pb = body;

	(void)room;
	(void)err;
	((struct request *)ret)->prefixes.cursor = pb->cursor;
	return 0;
}

static void *build_timelines(const void *message, struct pb_arena *arena)
{
	const struct timelines_request *from =
		&((const struct request *)message)->timelines;
	Fsdp__TimelinesRequest *pb =
		pb_arena_message(arena, &fsdp__timelines_request__descriptor);

	if (!pb || from->session == 0)
		return pb;
	pb->session = from->session;
	pb->slot = from->ref.slot;
	pb->generation = from->ref.generation;
	pb->wants_writable = from->wants_writable;
	return pb;
}

static int take_timelines(const void *body, struct room *room, void *ret,
			  struct error *err)
{
	const Fsdp__TimelinesRequest *pb = body;
	struct timelines_request *to = &((struct request *)ret)->timelines;

	(void)room;
	*to = (struct timelines_request){0};
	if (pb->session == 0)
		return 0;
	to->session = pb->session;
	to->wants_writable = pb->wants_writable;
	return ref_take(pb->slot, pb->generation, &to->ref, err);
}

static void *build_ordered(const void *message, struct pb_arena *arena)
{
	const struct ordered_request *from =
		&((const struct request *)message)->ordered;
	Fsdp__OrderedRequest *pb =
		pb_arena_message(arena, &fsdp__ordered_request__descriptor);

	if (!pb)
		return NULL;
	pb->n_items = from->n_items;
	pb->items = pb_arena_messages(arena, &fsdp__ordered_item__descriptor,
				      from->n_items);
	if (!pb->items)
		return NULL;
	for (uint32_t i = 0; i < from->n_items; i++) {
		pb->items[i]->slot = from->items[i].ref.slot;
		pb->items[i]->generation = from->items[i].ref.generation;
		pb->items[i]->event = from->items[i].event;
	}
	return pb;
}

static int take_ordered_item(const Fsdp__OrderedItem *pb,
			     struct ordered_item *to, struct error *err)
{
	int r = event_check(pb->event, err);

	if (r < 0)
		return r;
	to->event = pb->event;
	return ref_take(pb->slot, pb->generation, &to->ref, err);
}

static int take_ordered(const void *body, struct room *room, void *ret,
			struct error *err)
{
	const Fsdp__OrderedRequest *pb = body;
	struct ordered_request *to = &((struct request *)ret)->ordered;
	size_t size = pb->n_items * sizeof(*to->items);
	int r = count_check(pb->n_items, MESSAGE_MAX_ITEMS, "tensors", err);

	if (r < 0)
		return r;
	r = room_open(room, size, 0, err);
	if (r < 0)
		return r;
	to->n_items = (uint32_t)pb->n_items;
	to->items = room_array(room, size);
	for (size_t i = 0; i < pb->n_items; i++) {
		r = take_ordered_item(pb->items[i], &to->items[i], err);
		if (r < 0)
			return error_wrap(err, r, "tensors[%zu]", i);
	}
	return 0;
}

#define EMPTY                                                                  \
	{                                                                      \
		&fsdp__empty__descriptor, NULL, NULL                           \
	}
#define CODEC(noun)                                                            \
	{                                                                      \
		&fsdp__##noun##_request__descriptor, build_##noun, take_##noun \
	}

const struct codec request_codecs[MESSAGE_MAX + 1] = {
	[MESSAGE_HELLO] = CODEC(hello),
	[MESSAGE_CHALLENGE] = CODEC(challenge),
	[MESSAGE_GOODBYE] = EMPTY,
	[MESSAGE_PING] = EMPTY,
	[MESSAGE_ALLOC] = CODEC(alloc),
	[MESSAGE_PUBLISH] = CODEC(publish),
	[MESSAGE_GET] = CODEC(get),
	[MESSAGE_RELEASE] = CODEC(release),
	[MESSAGE_REMOVE] = CODEC(remove),
	[MESSAGE_TICKET] = CODEC(ticket),
	[MESSAGE_REDEEM] = CODEC(redeem),
	[MESSAGE_BUNDLE_BEGIN] = CODEC(bundle_begin),
	[MESSAGE_BUNDLE_COMMIT] = CODEC(bundle_end),
	[MESSAGE_BUNDLE_ABORT] = CODEC(bundle_end),
	[MESSAGE_BUNDLE_GET] = CODEC(bundle_get),
	[MESSAGE_CHUNK] = CODEC(chunk),
	[MESSAGE_LIST] = CODEC(list),
	[MESSAGE_WHO] = CODEC(who),
	[MESSAGE_CLIENTS] = CODEC(clients),
	[MESSAGE_STATUS] = CODEC(status),
	[MESSAGE_PREFIXES] = CODEC(prefixes),
	[MESSAGE_TIMELINES] = CODEC(timelines),
	[MESSAGE_SHARE] = CODEC(share),
	[MESSAGE_UNSHARE] = CODEC(unshare),
	[MESSAGE_ORDERED] = CODEC(ordered),
	[MESSAGE_TICKETS] = CODEC(tickets),
	[MESSAGE_REVOKE] = CODEC(revoke),
};
