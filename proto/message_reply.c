/*
 * The tables of the fields of replies (message_rows.h), and the rules that
 * concern several fields.
 *
 * The client decodes replies. It trusts the broker with its data, but a broken
 * or malicious broker must not be able to crash it. Offsets into the places of
 * a group are not compared with their sizes here, because that needs the
 * parameters, which are in the request.
 */
#include "proto/message_rows.h"

#include "proto/error.h"
#include "proto/frame.h"
#include <inttypes.h>
#include <string.h>

/* Rows are formatted by hand. */
/* clang-format off */

#define MAX_STATE  3 /* enum slot_state, shm/table.h */
#define MAX_LAYOUT 1 /* enum plan_layout, collective/plan.h */

const struct body body_empty_reply = {.descriptor = &fsdp__empty__descriptor};

BODY(error_reply, NULL,
     {TEXT(error_reply, sentence, ERROR_MSG_SIZE - 1, "sentence")});

/* --- parts --------------------------------------------------------------- */

static int check_chunk_ref(void *ours, struct error *err)
{
	const struct chunk_ref *chunk = ours;

	if (chunk->chunk == 0 || chunk->size == 0 || chunk->size > INT64_MAX ||
	    chunk->index >= MESSAGE_MAX_CHUNKS)
		return error_set(err, -EPROTO,
				 "there is no chunk %u of %" PRIu64
				 " bytes at entry %u",
				 chunk->chunk, chunk->size, chunk->index);
	if (chunk->has_handle && device_uuid_is_host(&chunk->device))
		return error_set(err, -EPROTO,
				 "chunk %u has a handle and no device",
				 chunk->chunk);
	return 0;
}

ITEM(chunk_ref, check_chunk_ref,
     {U32(chunk_ref, chunk)},
     {U32(chunk_ref, index)},
     {U64(chunk_ref, size)},
     {BOOL(chunk_ref, is_writable)},
     {DEVICE(chunk_ref)},
     {MAYBE_BYTES(chunk_ref, handle, "IPC handle")});

/* --- sessions ------------------------------------------------------------ */

BODY(hello_reply, NULL,
     {BOOL(hello_reply, is_challenge)},
     {U64(hello_reply, nonce), IF(hello_reply, is_challenge)},
     {U64(hello_reply, session), ID("session"), CODE(EPROTO),
      UNLESS(hello_reply, is_challenge)},
     {U32(hello_reply, n_slots), ID("number of slots"), CODE(EPROTO),
      UNLESS(hello_reply, is_challenge)},
     {BYTES(hello_reply, token, "session token"),
      UNLESS(hello_reply, is_challenge)});

BODY(timelines_reply, NULL,
     {U64(timelines_reply, session), ID("session"), CODE(EPROTO)},
     {MAYBE_BYTES(timelines_reply, event, "IPC handle")});

/* --- tensors ------------------------------------------------------------- */

BODY(channel_reply, NULL,
     {U64(channel_reply, channel), ID("channel"), CODE(EPROTO)},
     {U32(channel_reply, place), IN(0, CHANNEL_MAX_SLOTS - 1, "place"),
      CODE(EPROTO)},
     {U64(channel_reply, capacity), SIZE("capacity")},
     {U32(channel_reply, way), IN(0, CHANNEL_MAX_WAY, "mode"), CODE(EPROTO)},
     {U32(channel_reply, lag_ms)});

ITEM(channel_item, NULL,
     {NAME(channel_item, name, OF_TENSOR)},
     {U32(channel_item, uid)},
     {U32(channel_item, way), IN(0, CHANNEL_MAX_WAY, "mode"), CODE(EPROTO)},
     {U64(channel_item, capacity)},
     {U32(channel_item, n_slots)},
     {U32(channel_item, n_queued)},
     {U32(channel_item, pid)},
     {TEXT(channel_item, command, MESSAGE_MAX_TEXT, "command")},
     {U32(channel_item, role),
      IN(CHANNEL_PRODUCER, CHANNEL_CONSUMER, "role"), CODE(EPROTO)},
     {BOOL(channel_item, is_ended)},
     {U64(channel_item, n_items)},
     {U64(channel_item, n_waits)},
     {U64(channel_item, age_ms)},
     {U32(channel_item, want), IN(0, CHANNEL_MAX_WANT, "want"), CODE(EPROTO)},
     {U64(channel_item, wait_ms)});

PAGE_BODY(channels_reply, channel_item);

BODY(places_reply, NULL, {PLACES(places_reply)}, {CHUNKS(places_reply)});

BODY(chunks_reply, NULL, {CHUNKS(chunks_reply)});

BODY(versions_reply, NULL,
     {NUMBERS(versions_reply, versions, versions, uint64_t, 1,
	      MESSAGE_MAX_ITEMS, "versions"),
      COUNT(versions_reply, n_versions)});

BODY(ticket_reply, NULL, {BYTES(ticket_reply, ticket, "ticket")});

BODY(bundle_reply, NULL,
     {U64(bundle_reply, bundle), ID("bundle"), CODE(EPROTO)},
     {U64(bundle_reply, version)});

static int check_bundle_get(void *ours, struct error *err)
{
	const struct bundle_get_reply *reply = ours;

	if (reply->n_members > MESSAGE_MAX_PLACES ||
	    reply->manifest_size > MANIFEST_MAX_SIZE)
		return error_set(err, -EPROTO,
				 "a bundle cannot have %u members in %" PRIu64
				 " bytes",
				 reply->n_members, reply->manifest_size);
	return 0;
}

BODY(bundle_get_reply, check_bundle_get,
     {U64(bundle_get_reply, bundle), ID("bundle"), CODE(EPROTO)},
     {U64(bundle_get_reply, version)},
     {U32(bundle_get_reply, n_members)},
     {U64(bundle_get_reply, manifest_size)},
     {CHUNKS(bundle_get_reply)});

/* --- lists --------------------------------------------------------------- */

ITEM(list_item, NULL,
     {U32_AS(list_item, access.uid, uid)},
     {ACCESS(list_item)},
     {U32(list_item, state), IN(0, MAX_STATE, "state"), CODE(EPROTO)},
     {U64(list_item, age_ms)},
     {U64(list_item, ttl_left_ms)},
     {U32(list_item, n_holders)},
     {U32(list_item, flags), FLAGS(PUBLISH_ALL)},
     {U64(list_item, bundle)},
     {DEVICE(list_item)},
     {U32(list_item, shared), IN(0, SHARE_MAX, "kind of shared memory"),
      CODE(EPROTO)},
     {U64(list_item, block)},
     {U64(list_item, block_bytes)},
     {U32(list_item, block_slots)},
     {U32(list_item, payer_uid)},
     {U32(list_item, maker_pid)},
     {U32(list_item, n_tickets)},
     {BOOL(list_item, is_collective)},
     {U32(list_item, bundle_name_size)},
     {U64(list_item, digest)});

static int check_list(void *ours, struct error *err)
{
	const struct list_reply *list = ours;

	for (uint32_t i = 0; i < list->n_items; i++) {
		const struct list_item *item = &list->items[i];

		if (item->bundle_name_size > strlen(item->place.name))
			return error_set(err, -EPROTO,
					 "items[%u]: the bundle's name is "
					 "longer than its member's",
					 i);
	}
	return 0;
}

BODY(list_reply, check_list,
     {PAGE(list_reply, items, list_item)},
     {PLACES_IN_ITEMS(list_reply, list_item)},
     {U64(list_reply, next_cursor)});

BODY(control_reply, NULL,
     {U64(control_reply, n)},
     {U64(control_reply, bytes)},
     {BOOL(control_reply, has_more)});

ITEM(event_item, NULL,
     {U32(event_item, event), IN(EVENT_PUBLISHED, EVENT_MAX, "event"),
      CODE(EPROTO)},
     {NAME(event_item, name, OF_ANY)},
     {U64(event_item, version)},
     {U32(event_item, uid)},
     {U64(event_item, age_ms)});

BODY(events_reply, NULL,
     {U64(events_reply, next)},
     {BOOL(events_reply, is_lost)},
     {PAGE(events_reply, items, event_item)});

ITEM(config_item, NULL,
     {TEXT(config_item, section, MESSAGE_MAX_TEXT, "section")},
     {TEXT(config_item, name, MESSAGE_MAX_TEXT, "key")},
     {TEXT(config_item, value, MESSAGE_MAX_TEXT, "value")},
     {TEXT(config_item, origin, MESSAGE_MAX_NOTE, "origin")});

PAGE_BODY(config_reply, config_item);

BODY(reload_reply, NULL,
     {TEXT(reload_reply, report, MESSAGE_MAX_NOTE, "report")});

ITEM(ticket_item, NULL,
     {U64(ticket_item, id)},
     {REF(ticket_item, ref)},
     {NAME(ticket_item, name, OF_TENSOR_OR_NONE)},
     {U64(ticket_item, block_bytes)},
     {U32(ticket_item, uid)},
     {U32(ticket_item, pid)},
     {U32(ticket_item, uses_left)},
     {U64(ticket_item, age_ms)},
     {U64(ticket_item, ttl_left_ms)});

PAGE_BODY(tickets_reply, ticket_item);

ITEM(holder, NULL,
     {U64(holder, session)},
     {U32(holder, pid)},
     {U32(holder, uid)},
     {TEXT(holder, command, MESSAGE_MAX_TEXT, "command")},
     {I64(holder, holds)},
     {BOOL(holder, is_connected)},
     {BOOL(holder, is_writer)},
     {BOOL(holder, is_ending)});

BODY(who_reply, NULL,
     {PLACE(who_reply)},
     {U32(who_reply, state), IN(0, MAX_STATE, "state"), CODE(EPROTO)},
     {U32(who_reply, n_tickets)},
     {PAGE(who_reply, holders, holder)},
     {U64(who_reply, next_cursor)});

ITEM(client_item, NULL,
     {U64(client_item, session)},
     {U32(client_item, pid)},
     {U32(client_item, uid)},
     {TEXT(client_item, command, MESSAGE_MAX_TEXT, "command")},
     {BOOL(client_item, is_connected)},
     {U64(client_item, n_slots)},
     {U64(client_item, n_bytes)},
     {U64(client_item, n_requests)},
     {U64(client_item, age_ms)},
     {U32(client_item, n_waiting)});

PAGE_BODY(clients_reply, client_item);

ITEM(prefix_item, NULL,
     {NAME(prefix_item, name, OF_TENSOR)},
     {U32(prefix_item, uid)},
     {U32(prefix_item, n_names)},
     {U32(prefix_item, n_bundles)},
     {BOOL(prefix_item, is_configured)},
     {U64(prefix_item, left_ms)});

PAGE_BODY(prefixes_reply, prefix_item);

ITEM(status_value, NULL,
     {TEXT(status_value, name, MESSAGE_MAX_TEXT, "name of a value")},
     {U64(status_value, value)});

BODY(status_reply, NULL,
     {TEXT(status_reply, version, MESSAGE_MAX_TEXT, "version")},
     {TEXT(status_reply, note, MESSAGE_MAX_NOTE, "note")},
     {PAGE(status_reply, values, status_value)});

ITEM(histogram_item, NULL,
     {U32(histogram_item, what), IN(1, HISTOGRAM_MAX, "kind of histogram"),
      CODE(EPROTO)},
     {TEXT(histogram_item, name, MESSAGE_MAX_TEXT, "name of a histogram")},
     {U64(histogram_item, sum_ns)});

static int check_histograms(void *ours, struct error *err)
{
	const struct histograms_reply *reply = ours;

	if (reply->n_counts != reply->n_items * HISTOGRAM_BUCKETS)
		return error_set(err, -EPROTO,
				 "%u histograms cannot have %u counts in all",
				 reply->n_items, reply->n_counts);
	return 0;
}

BODY(histograms_reply, check_histograms,
     {ITEMS(histograms_reply, items, histogram_item, 0,
	    MESSAGE_MAX_HISTOGRAMS, "histograms")},
     {NUMBERS(histograms_reply, counts, counts, uint64_t, 0,
	      MESSAGE_MAX_HISTOGRAMS * HISTOGRAM_BUCKETS, "counts"),
      COUNT(histograms_reply, n_counts)},
     {U64(histograms_reply, next_cursor)});

ITEM(memory_item, NULL,
     {U32(memory_item, chunk)},
     {U64(memory_item, size), SIZE("bytes")},
     {U64(memory_item, used), SIZE("bytes")},
     {U64(memory_item, reserved), SIZE("bytes")},
     {U32_AS(memory_item, access.uid, uid)},
     {ACCESS(memory_item)},
     {DEVICE(memory_item)},
     {U32(memory_item, shared), IN(0, SHARE_MAX, "kind of shared memory"),
      CODE(EPROTO)},
     {U64(memory_item, bundle)},
     {U32(memory_item, n_blocks)},
     {BOOL(memory_item, is_sealed)});

PAGE_BODY(memory_reply, memory_item);

ITEM(account_item, NULL,
     {U32(account_item, uid)},
     {U64(account_item, n_bytes)},
     {U64(account_item, max_bytes)},
     {U64(account_item, n_device_bytes)},
     {U64(account_item, max_device_bytes)},
     {U64(account_item, n_slots)},
     {U64(account_item, max_slots)},
     {U64(account_item, n_sessions)},
     {U64(account_item, max_sessions)},
     {U64(account_item, n_waiting)});

PAGE_BODY(accounts_reply, account_item);

/* --- collectives --------------------------------------------------------- */

BODY(comm_reply, NULL,
     {U64(comm_reply, comm), ID("communicator")},
     {U64(comm_reply, step)},
     {MAYBE_BYTES(comm_reply, nccl_id, "NCCL id")},
     {BOOL(comm_reply, takes_fences)},
     {U32(comm_reply, verdict)},
     {U32(comm_reply, direct)});

BODY(work_reply, NULL, {U64(work_reply, sequence), ID("work")});

static int check_group_entry(void *ours, struct error *err)
{
	const struct group_entry *entry = ours;

	if (entry->shard_dim >= TENSOR_MAX_DIMS || entry->shard_size < 0)
		return error_set(err, -EPROTO,
				 "a shard cannot have the size %" PRId64
				 " along dimension %u",
				 entry->shard_size, entry->shard_dim);
	return 0;
}

#define ENTRY(f, T) COLUMN(group_entry, group_reply, f, T)

COLUMNS_OF(group_entry, check_group_entry,
	   {BYTE_COLUMN(group_entry, group_reply, full_dtype), DTYPE},
	   {BYTE_COLUMN(group_entry, group_reply, input_dtype), DTYPE_OR_NONE},
	   {BYTE_COLUMN(group_entry, group_reply, shard_dim)},
	   {ENTRY(shard_size, int64_t)},
	   {ENTRY(shard_offset, uint64_t), SIZE("offset")},
	   {ENTRY(full_offset, uint64_t), SIZE("offset")},
	   {ENTRY(input_offset, uint64_t), SIZE("offset")},
	   {ENTRY(grad_offset, uint64_t), SIZE("offset")});

static int check_group(void *ours, struct error *err)
{
	const struct group_reply *group = ours;

	for (uint32_t i = 0; i < group->n_places; i++) {
		const struct tensor_type *type = &group->places[i].type;

		if (type->dtype != DTYPE_U8 || type->n_dims != 1 ||
		    !tensor_type_is_contiguous(type))
			return error_set(err, -EPROTO,
					 "place %u is not a row of bytes (u8)", i);
	}
	if (group->places[0].size != group->places[1].size)
		return error_set(err, -EPROTO,
				 "the two versions of a shard have %" PRIu64
				 " and %" PRIu64 " bytes",
				 group->places[0].size, group->places[1].size);
	return 0;
}

BODY(group_reply, check_group,
     {U64(group_reply, group), ID("group")},
     {U64(group_reply, hash)},
     {U64(group_reply, step)},
     {U32(group_reply, side), IN(0, 1, "side"), CODE(EPROTO)},
     {PLACE_ARRAY(group_reply, 2, GROUP_REPLY_PLACES)},
     {COLUMNS(group_reply, entries, group_entry, MESSAGE_MAX_PARAMS,
	      "parameters"),
      LABEL("params")},
     {CHUNKS(group_reply)},
     {BOOL(group_reply, is_in_place)},
     {U32(group_reply, index)});

static int check_comm_item(void *ours, struct error *err)
{
	const struct comm_item *item = ours;

	if (item->n_shards == 0 || item->n_ranks % item->n_shards != 0)
		return error_set(err, -EPROTO,
				 "%u ranks cannot have %u shards",
				 item->n_ranks, item->n_shards);
	return 0;
}

ITEM(comm_item, check_comm_item,
     {NAME(comm_item, name, OF_TENSOR)},
     {U64(comm_item, comm)},
     {U32(comm_item, uid)},
     {U32(comm_item, state),
      IN(COMM_KEPT, COMM_FAILED, "state of a communicator"), CODE(EPROTO)},
     {U32(comm_item, n_ranks)},
     {U32(comm_item, n_shards)},
     {U32(comm_item, n_joined)},
     {U32(comm_item, n_groups)},
     {U64(comm_item, step)},
     {U64(comm_item, n_bytes)},
     {U64(comm_item, ttl_left_ms)},
     {U32(comm_item, n_in_flight)},
     {U32(comm_item, n_limited)},
     {U64(comm_item, bytes_in_flight)},
     {TEXT(comm_item, note, MESSAGE_MAX_NOTE, "note")},
     {U32(comm_item, n_local)},
     {BOOL(comm_item, is_on_devices)},
     {U32(comm_item, executor), IN(0, COMM_EXECUTOR_WORKER, "executor"),
      CODE(EPROTO)});

PAGE_BODY(comms_reply, comm_item);

ITEM(group_item, NULL,
     {NAME(group_item, comm, OF_TENSOR)},
     {NAME(group_item, name, OF_TENSOR)},
     {U32(group_item, n_params)},
     {U32(group_item, n_gather_buckets)},
     {U32(group_item, n_reduce_buckets)},
     {U64(group_item, step)},
     {U64(group_item, hash)},
     {U64(group_item, shards_bytes)},
     {U64(group_item, full_bytes)},
     {BOOL(group_item, is_unsharded)},
     {U64(group_item, n_gathers)},
     {U64(group_item, n_reductions)});

PAGE_BODY(groups_reply, group_item);

ITEM(plan_item, NULL,
     {NAME(plan_item, name, OF_TENSOR)},
     {TYPE(plan_item)},
     {U32(plan_item, shard_dim), IN(0, TENSOR_MAX_DIMS - 1, "dimension"),
      CODE(EPROTO)},
     {U32(plan_item, full_dtype), DTYPE},
     {U32(plan_item, input_dtype), DTYPE_OR_NONE},
     {U32(plan_item, reduce_dtype), DTYPE_OR_NONE},
     {U32(plan_item, gather_bucket)},
     {U32(plan_item, reduce_bucket)},
     {U64(plan_item, shard_offset)},
     {U64(plan_item, shard_stride)},
     {U64(plan_item, full_offset)},
     {U64(plan_item, input_offset)},
     {U64(plan_item, grad_offset)},
     {U64(plan_item, chunk_bytes)});

static int check_group_plan(void *ours, struct error *err)
{
	const struct group_plan_reply *plan = ours;

	if (plan->n_shards == 0 || plan->n_shards > MESSAGE_MAX_WORLD ||
	    plan->n_replicas == 0 ||
	    plan->n_replicas > MESSAGE_MAX_WORLD / plan->n_shards ||
	    plan->layout > MAX_LAYOUT)
		return error_set(err, -EPROTO,
				 "a plan cannot have %u shards, %u replicas and "
				 "layout %u",
				 plan->n_shards, plan->n_replicas,
				 plan->layout);
	return 0;
}

BODY(group_plan_reply, check_group_plan,
     {U64(group_plan_reply, hash)},
     {U32(group_plan_reply, n_shards)},
     {U32(group_plan_reply, n_replicas)},
     {U32(group_plan_reply, layout)},
     {BOOL(group_plan_reply, is_in_place)},
     {PAGE(group_plan_reply, items, plan_item)},
     {U64(group_plan_reply, next_cursor)});
