/*
 * The tables of the fields of requests (message_rows.h), and the rules that
 * concern several fields.
 *
 * Everything is checked that does not depend on the broker's state. The plan
 * (collective/) checks whether parameters can be sharded, cast and reduced as
 * requested, and whether caps and factors make sense.
 */
#include "proto/message_rows.h"

#include "proto/error.h"
#include "proto/frame.h"
#include "proto/name.h"
#include <inttypes.h>

/* Rows are formatted by hand. */
/* clang-format off */

const struct body body_empty_request = {.descriptor = &fsdp__empty__descriptor};

/* --- sessions ------------------------------------------------------------ */

BODY(hello_request, NULL,
     {U32(hello_request, major)},
     {U32(hello_request, minor)},
     {U64(hello_request, budget)},
     {BOOL(hello_request, is_reconnect)},
     {U64(hello_request, session), ID("session"),
      IF(hello_request, is_reconnect)},
     {BYTES(hello_request, token, "session token"),
      IF(hello_request, is_reconnect)});

BODY(challenge_request, NULL, {U64(challenge_request, nonce)});

/* --- tensors ------------------------------------------------------------- */

static int check_alloc_item(void *ours, struct error *err)
{
	const struct alloc_item *item = ours;

	if (item->is_view || tensor_type_is_contiguous(&item->type))
		return 0;
	return error_set(err, -EINVAL,
			 "a tensor with memory of its own is contiguous; only "
			 "views have other strides");
}

ITEM(alloc_item, check_alloc_item,
     {TYPE(alloc_item), STRIDES(alloc_item)},
     {BOOL(alloc_item, is_view)},
     {REF_AS(alloc_item, base, base_slot, base_generation),
      IF(alloc_item, is_view)},
     {U64(alloc_item, base_offset), SIZE("offset of a view"),
      IF(alloc_item, is_view)},
     {NAME(alloc_item, name, OF_TENSOR_OR_NONE)});

static int check_alloc(void *ours, struct error *err)
{
	const struct alloc_request *request = ours;
	int r = 0;

	for (uint32_t i = 0; i < request->n_items; i++) {
		const char *name = request->items[i].name;

		if (request->bundle)
			r = name_check(name, err);
		else if (name[0])
			r = error_set(err, -EINVAL,
				      "only members of bundles are named when "
				      "they are allocated; publish gives other "
				      "names");
		if (r < 0)
			return error_wrap(err, r, "specs[%u]", i);
	}
	return 0;
}

BODY(alloc_request, check_alloc,
     {ACCESS(alloc_request)},
     {I32(alloc_request, timeout_ms), TIMEOUT},
     {DEVICE(alloc_request)},
     {U64(alloc_request, bundle)},
     {TENSORS(alloc_request, alloc_item), LABEL("specs")});

ITEM(share_item, NULL,
     {TYPE(share_item), STRIDES(share_item)},
     {U64(share_item, offset)});

/* `size` is that of the allocation. */
static int check_share_item(const struct share_item *item, uint64_t size,
			    struct error *err)
{
	uint32_t unit = dtype_size(item->type.dtype);
	uint64_t span;
	int r = tensor_type_check(&item->type, &span, err);

	if (r < 0)
		return r;
	if (item->offset > size || span > size - item->offset)
		return error_set(err, -ERANGE,
				 "its %" PRIu64 " bytes at offset %" PRIu64
				 " reach outside of the allocation, which has "
				 "%" PRIu64,
				 span, item->offset, size);
	if (item->offset % unit != 0)
		return error_set(err, -EINVAL,
				 "its offset %" PRIu64
				 " is not a multiple of %u, the size of one %s",
				 item->offset, unit,
				 dtype_name(item->type.dtype));
	return 0;
}

static int check_share(void *ours, struct error *err)
{
	const struct share_request *request = ours;

	if (device_uuid_is_host(&request->device))
		return error_set(err, -EINVAL,
				 "only memory of devices can be shared; "
				 "allocate host memory from fsdpd, and copy "
				 "the contents");
	if (request->size == 0)
		return error_set(err, -EINVAL,
				 "the size of its allocation is missing");
	for (uint32_t i = 0; i < request->n_items; i++) {
		int r = check_share_item(&request->items[i], request->size,
					 err);

		if (r < 0)
			return error_wrap(err, r, "specs[%u]", i);
	}
	return 0;
}

BODY(share_request, check_share,
     {ACCESS(share_request)},
     {DEVICE(share_request)},
     {MAYBE_BYTES(share_request, handle, "IPC handle")},
     {U64(share_request, size), SIZE("size of the allocation")},
     {TENSORS(share_request, share_item), LABEL("specs")});

BODY(unshare_request, NULL,
     {REF(unshare_request, ref)},
     {I32(unshare_request, timeout_ms), TIMEOUT});

/* --- names --------------------------------------------------------------- */

/* A timeline or an event tells when the tensor is complete, but not both. */
static int check_publish_item(void *ours, struct error *err)
{
	const struct publish_item *item = ours;

	if (item->event && (item->timeline || item->value))
		return error_set(err, -EINVAL,
				 "it has a timeline and an event; give one of "
				 "them");
	return fence_check(item->timeline, item->value, err);
}

ITEM(publish_item, check_publish_item,
     {REF(publish_item, ref)},
     {NAME(publish_item, name, OF_TENSOR_OR_NONE)},
     {U32(publish_item, flags), FLAGS(PUBLISH_ALL)},
     {U64(publish_item, ttl_ms), TTL},
     {U32(publish_item, timeline)},
     {U64(publish_item, value)},
     {HANDLE(publish_item, event)});

BODY(publish_request, NULL,
     {TENSORS(publish_request, publish_item), LABEL("publications")});

BODY(get_request, NULL,
     {I32(get_request, timeout_ms), TIMEOUT},
     {BOOL(get_request, is_trust_set)},
     {U32(get_request, trusted_uid), IF(get_request, is_trust_set)},
     {NAMES(get_request, OF_TENSOR)},
     {U64(get_request, newer_than)});

static int check_release_item(void *ours, struct error *err)
{
	uint32_t n = ((const struct release_item *)ours)->n_holds;

	/* holds are summed as signed 32-bit numbers */
	if (n == 0 || n > INT32_MAX)
		return error_set(err, -EINVAL,
				 "%u holds cannot be released at once", n);
	return 0;
}

ITEM(release_item, check_release_item,
     {REF(release_item, ref)},
     {U32(release_item, n_holds)});

BODY(release_request, NULL,
     {TENSORS(release_request, release_item), LABEL("tensors")});

BODY(remove_request, NULL, {NAMES(remove_request, OF_ANY)});

static int check_ticket(void *ours, struct error *err)
{
	const struct ticket_request *request = ours;

	if (request->n_uses == 0 || request->ttl_ms == 0)
		return error_set(err, -EINVAL,
				 "a ticket needs a number of uses and a time "
				 "to live, both above 0");
	return 0;
}

BODY(ticket_request, check_ticket,
     {REF(ticket_request, ref)},
     {U32(ticket_request, n_uses)},
     {U64(ticket_request, ttl_ms), TTL});

BODY(redeem_request, NULL, {KEYS(redeem_request, tickets)});
BODY(revoke_request, NULL, {U64(revoke_request, ticket)});

ITEM(ordered_item, NULL,
     {REF(ordered_item, ref)},
     {U64(ordered_item, event), EVENT});

BODY(ordered_request, NULL,
     {TENSORS(ordered_request, ordered_item), LABEL("tensors")});

BODY(control_request, NULL,
     {U32(control_request, action),
      IN(CONTROL_COLLECT, CONTROL_MAX, "action")},
     {U64(control_request, value)},
     {I32(control_request, timeout_ms), TIMEOUT},
     {DEVICE(control_request)});

BODY(events_request, NULL,
     {U64(events_request, since)},
     {TEXT(events_request, prefix, NAME_MAX_SIZE, "prefix")},
     {I32(events_request, timeout_ms), TIMEOUT});

ITEM(digest_item, NULL,
     {REF(digest_item, ref)},
     {U64(digest_item, digest)});

BODY(digests_request, NULL,
     {TENSORS(digests_request, digest_item), LABEL("tensors")});

BODY(timelines_request, NULL,
     {U64(timelines_request, session)},
     {REF(timelines_request, ref), IF(timelines_request, session)},
     {BOOL(timelines_request, wants_writable),
      IF(timelines_request, session)});

/* --- bundles and chunks -------------------------------------------------- */

BODY(bundle_begin_request, NULL,
     {NAME(bundle_begin_request, name, OF_BUNDLE)},
     {ACCESS(bundle_begin_request)},
     {U64(bundle_begin_request, size_hint), SIZE("size of a bundle")},
     {DEVICE(bundle_begin_request)},
     {U32(bundle_begin_request, flags), FLAGS(PUBLISH_OF_BUNDLE)},
     {U64(bundle_begin_request, ttl_ms), TTL},
     {I32(bundle_begin_request, timeout_ms), TIMEOUT},
     {U32(bundle_begin_request, n_kept),
      IN(0, MESSAGE_MAX_KEPT, "number of versions")});

BODY(bundle_end_request, NULL, {U64(bundle_end_request, bundle), ID("bundle")});

BODY(bundle_get_request, NULL,
     {NAME(bundle_get_request, name, OF_BUNDLE)},
     {BOOL(bundle_get_request, is_trust_set)},
     {U32(bundle_get_request, trusted_uid),
      IF(bundle_get_request, is_trust_set)},
     {U64(bundle_get_request, newer_than)},
     {U64(bundle_get_request, version)},
     {I32(bundle_get_request, timeout_ms), TIMEOUT});

static int check_chunk(void *ours, struct error *err)
{
	const struct chunk_request *request = ours;

	for (uint32_t i = 0; i < request->n_chunks; i++) {
		if (request->chunks[i] == 0)
			return error_set(err, -EINVAL,
					 "there is no chunk 0: chunks count from 1");
	}
	return 0;
}

BODY(chunk_request, check_chunk,
     {NUMBERS(chunk_request, chunks, chunks, uint32_t, 1, FRAME_MAX_FDS,
     	 "chunks"),
      COUNT(chunk_request, n_chunks)});

/* --- lists --------------------------------------------------------------- */

/* The prefix is not checked as a name, because it may end anywhere in one. */
BODY(list_request, NULL,
     {TEXT(list_request, prefix, NAME_MAX_SIZE, "prefix")},
     {U32(list_request, filter), IN(LIST_NAMED, LIST_CHARGED, "filter")},
     {U64(list_request, cursor)});

BODY(who_request, NULL,
     {NAME(who_request, name, OF_TENSOR_OR_NONE)},
     {REF(who_request, ref), UNLESS(who_request, name)},
     {U64(who_request, cursor)});

BODY(page_request, NULL, {U64(page_request, cursor)});
BODY(status_request, NULL, {BOOL(status_request, resets)});

BODY(groups_request, NULL,
     {NAME(groups_request, comm, OF_TENSOR_OR_NONE)},
     {U64(groups_request, cursor)});

BODY(group_plan_request, NULL,
     {NAME(group_plan_request, comm, OF_TENSOR), LABEL("communicator")},
     {NAME(group_plan_request, group, OF_TENSOR), LABEL("group")},
     {U64(group_plan_request, cursor)});

/* --- channels ------------------------------------------------------------ */

static int check_channel_open(void *ours, struct error *err)
{
	struct channel_open_request *request = ours;

	if (request->n_slots == 0)
		request->n_slots = 8;
	if (request->capacity && request->lag_ms && !request->way)
		return error_set(err, -EINVAL,
				 "lag_ms is only for broadcasts; leave it 0 "
				 "for a channel whose consumers share items");
	if (request->n_slots <= CHANNEL_MAX_SLOTS)
		return 0;
	return error_set(err, -EINVAL,
			 "a channel has 1 to %d slots, not %u",
			 CHANNEL_MAX_SLOTS, request->n_slots);
}

#define CHANNEL_PLACE(M)                                                       \
	{U64(M, channel), ID("channel")},                                      \
	{U32(M, place), IN(0, CHANNEL_MAX_SLOTS - 1, "place")}
#define CHANNEL_AT(M) {U32(M, at), IN(0, CHANNEL_MAX_SLOTS - 1, "slot")}

BODY(channel_open_request, check_channel_open,
     {NAME(channel_open_request, name, OF_TENSOR)},
     {ACCESS(channel_open_request)},
     {U64(channel_open_request, capacity), SIZE("capacity")},
     {U32(channel_open_request, n_slots)},
     {U32(channel_open_request, way), IN(0, CHANNEL_MAX_WAY, "mode")},
     {U32(channel_open_request, role),
      IN(CHANNEL_PRODUCER, CHANNEL_CONSUMER, "role")},
     {I32(channel_open_request, timeout_ms), TIMEOUT},
     {BOOL(channel_open_request, writes)},
     {U32(channel_open_request, lag_ms)},
     {BOOL(channel_open_request, knows_limit)});

BODY(channel_place_request, NULL, CHANNEL_PLACE(channel_place_request));

BODY(channel_look_request, NULL,
     CHANNEL_PLACE(channel_look_request),
     {U32(channel_look_request, user), IN(0, CHANNEL_MAX_SLOTS - 1, "user")});

BODY(channel_buffer_request, NULL,
     CHANNEL_PLACE(channel_buffer_request),
     CHANNEL_AT(channel_buffer_request));

BODY(channel_close_request, NULL,
     CHANNEL_PLACE(channel_close_request),
     {BOOL(channel_close_request, is_end)});

BODY(channel_resize_request, NULL,
     CHANNEL_PLACE(channel_resize_request),
     {U32(channel_resize_request, n_slots),
      IN(1, CHANNEL_MAX_SLOTS, "number of slots")},
     {I32(channel_resize_request, timeout_ms), TIMEOUT});

BODY(channel_keep_request, NULL,
     CHANNEL_PLACE(channel_keep_request),
     CHANNEL_AT(channel_keep_request),
     {REF(channel_keep_request, ref)});

/* --- communicators ------------------------------------------------------- */

static int check_mesh(struct comm_join_request *join, struct error *err)
{
	uint32_t max = device_uuid_is_host(&join->device) ? MESSAGE_MAX_RANKS
							  : MESSAGE_MAX_WORLD;

	if (join->n_ranks == 0 || join->n_ranks > max)
		return error_set(err, -EINVAL,
				 "a communicator has 1 to %u ranks, not %u",
				 max, join->n_ranks);
	if (join->rank >= join->n_ranks)
		return error_set(err, -EINVAL,
				 "there is no rank %u among %u: ranks count from 0",
				 join->rank, join->n_ranks);
	if (join->n_shards == 0)
		join->n_shards = join->n_ranks;
	if (join->n_ranks % join->n_shards != 0)
		return error_set(err, -EINVAL,
				 "%u ranks cannot be replicas of %u shards "
				 "each; the shards must divide the ranks",
				 join->n_ranks, join->n_shards);
	return 0;
}

/* Sets defaults, and refuses options that only ranks on devices may use. */
static int check_node(struct comm_join_request *join, struct error *err)
{
	bool is_host = device_uuid_is_host(&join->device);

	if (join->n_local == 0)
		join->n_local = join->n_ranks;
	if (join->n_local > join->n_ranks || join->n_local > MESSAGE_MAX_RANKS)
		return error_set(err, -EINVAL,
				 "%u of %u ranks cannot be on one node, which "
				 "has at most %d (n_local)",
				 join->n_local, join->n_ranks,
				 MESSAGE_MAX_RANKS);
	if (is_host && (join->n_local != join->n_ranks || join->has_nccl_id))
		return error_set(err, -EINVAL,
				 "all ranks on host memory must be on one node "
				 "and have no NCCL id; for several nodes, give "
				 "each rank a device");
	if (join->memory != COMM_MEMORY_DEFAULT &&
	    (is_host || join->executor != COMM_EXECUTOR_RANK))
		return error_set(err, -EINVAL,
				 "only ranks on devices with the executor "
				 "FSDP_EXECUTOR_RANK can register memory with "
				 "NCCL; leave the kind of memory out");
	return 0;
}

static int check_comm_join(void *ours, struct error *err)
{
	struct comm_join_request *join = ours;
	int r = check_mesh(join, err);

	if (r == 0)
		r = check_node(join, err);
	if (r < 0)
		return r;
	if (join->n_inputs == 0)
		return error_set(err, -EINVAL,
				 "a rank needs at least one gradient input");
	if (join->timeout_ms <= 0 || join->ttl_ms == 0)
		return error_set(err, -EINVAL,
				 "a communicator needs a time-out and a time "
				 "to live, both above 0");
	return 0;
}

BODY(comm_join_request, check_comm_join,
     {NAME(comm_join_request, name, OF_TENSOR)},
     {ACCESS(comm_join_request)},
     {DEVICE(comm_join_request)},
     {U32(comm_join_request, n_ranks)},
     {U32(comm_join_request, rank)},
     {U32(comm_join_request, n_shards)},
     {U32(comm_join_request, n_local)},
     {MAYBE_BYTES(comm_join_request, nccl_id, "NCCL id")},
     {U32(comm_join_request, executor), IN(0, COMM_EXECUTOR_WORKER, "executor")},
     {U32(comm_join_request, memory),
      IN(0, COMM_MEMORY_REGISTERED, "kind of memory")},
     {U32(comm_join_request, limiter),
      IN(0, COMM_LIMITER_FSDP1, "limiter")},
     {U32(comm_join_request, limit)},
     {U64(comm_join_request, limit_bytes), SIZE("limit of bytes")},
     {U32(comm_join_request, n_inputs)},
     {I32(comm_join_request, timeout_ms)},
     {U64(comm_join_request, ttl_ms), TTL},
     {U32(comm_join_request, direct)});

BODY(comm_request, NULL, {U64(comm_request, comm), ID("communicator")});

BODY(comm_look_request, NULL,
     {U64(comm_look_request, comm), ID("communicator")},
     {U32(comm_look_request, rank), IN(0, MESSAGE_MAX_RANKS - 1, "rank")},
     {BOOL(comm_look_request, all)});

BODY(comm_place_request, NULL,
     {U64(comm_place_request, group), ID("group")},
     {BOOL(comm_place_request, is_input)},
     {REF_AS(comm_place_request, input, slot, generation),
      IF(comm_place_request, is_input)},
     {I32(comm_place_request, timeout_ms), TIMEOUT});

BODY(input_end_request, NULL,
     {U64(input_end_request, comm), ID("communicator")},
     {REF_AS(input_end_request, input, slot, generation)});

BODY(gather_buffer_request, NULL,
     {U64(gather_buffer_request, group), ID("group")},
     {U32(gather_buffer_request, buffer)},
     {U32(gather_buffer_request, version)},
     {I32(gather_buffer_request, timeout_ms), TIMEOUT});

BODY(comm_fail_request, NULL,
     {U64(comm_fail_request, comm), ID("communicator")},
     {TEXT(comm_fail_request, sentence, MESSAGE_MAX_TEXT, "sentence")});

BODY(comm_remove_request, NULL, {NAME(comm_remove_request, name, OF_TENSOR)});

/* --- groups -------------------------------------------------------------- */

ITEM(group_param, NULL,
     {NAME(group_param, name, OF_TENSOR)},
     {TYPE(group_param)},
     {I32(group_param, shard_dim)},
     {BOOL(group_param, is_frozen)});

BODY(group_request, NULL,
     {U64(group_request, comm), ID("communicator")},
     {NAME(group_request, name, OF_TENSOR)},
     {U32(group_request, param_dtype), DTYPE_OR_NONE, LABEL("param dtype")},
     {U32(group_request, input_dtype), DTYPE_OR_NONE, LABEL("input dtype")},
     {U32(group_request, reduce_dtype), DTYPE_OR_NONE,
      LABEL("reduce dtype")},
     {U32(group_request, layout), IN(0, 1, "layout")},
     {BOOL(group_request, stays_unsharded)},
     {BOOL(group_request, is_offloaded)},
     {NUMBERS(group_request, gather_caps_mb, gather_caps_mb, double, 0,
     	 MESSAGE_MAX_CAPS, "caps of gathers"),
      COUNT(group_request, n_gather_caps)},
     {NUMBERS(group_request, reduce_caps_mb, reduce_caps_mb, double, 0,
     	 MESSAGE_MAX_CAPS, "caps of reductions"),
      COUNT(group_request, n_reduce_caps)},
     {ITEMS(group_request, params, group_param, 1, MESSAGE_MAX_PARAMS,
            "parameters"),
      LABEL("params")});

BODY(unshard_request, NULL, {U64(unshard_request, group), ID("group")});

static int check_reshard(void *ours, struct error *err)
{
	uint32_t n_mesh = ((const struct reshard_request *)ours)->n_mesh;

	if (n_mesh > MESSAGE_MAX_WORLD)
		return error_set(err, -EINVAL,
				 "a mesh cannot have %u ranks: a communicator "
				 "has at most %d",
				 n_mesh, MESSAGE_MAX_WORLD);
	return 0;
}

BODY(reshard_request, check_reshard,
     {U64(reshard_request, group), ID("group")},
     {U32(reshard_request, n_mesh)});

BODY(input_request, NULL,
     {U64(input_request, group), ID("group")},
     {I32(input_request, timeout_ms), TIMEOUT});

BODY(reduce_request, NULL,
     {U64(reduce_request, group), ID("group")},
     {REF_AS(reduce_request, input, slot, generation)},
     {BOOL(reduce_request, has_factor)},
     {DOUBLE(reduce_request, factor), IF(reduce_request, has_factor)},
     {U32(reduce_request, flags), FLAGS(REDUCE_ACCUMULATE |
     				   REDUCE_NO_ALL_REDUCE |
     				   REDUCE_FORCE_SUM)},
     {U32(reduce_request, timeline)},
     {U64(reduce_request, value)});

static int check_commit(void *ours, struct error *err)
{
	if (((const struct commit_request *)ours)->step == 0)
		return error_set(err, -EINVAL,
				 "there is no step 0: steps begin at 1");
	return 0;
}

BODY(commit_request, check_commit,
     {U64(commit_request, comm), ID("communicator")},
     {U64(commit_request, step)},
     {U64(commit_request, n_gathers)});

static int check_wait(void *ours, struct error *err)
{
	const struct wait_request *wait = ours;

	if ((wait->group == 0) == (wait->kind == WORK_COMMIT) &&
	    (wait->sequence != 0 || wait->kind == WORK_UNSHARD))
		return 0;
	return error_set(err, -EINVAL,
			 "there is no work %" PRIu64
			 " of kind %u of group %" PRIu64
			 ": only commits are without a group",
			 wait->sequence, wait->kind, wait->group);
}

BODY(wait_request, check_wait,
     {U64(wait_request, comm), ID("communicator")},
     {U64(wait_request, group)},
     {U32(wait_request, kind),
      IN(WORK_UNSHARD, WORK_COMMIT, "work of kind")},
     {U64(wait_request, sequence)},
     {I32(wait_request, timeout_ms), TIMEOUT});
