/*
 * Messages of collectives: what is sent arrives with every field, what is
 * wrong is refused, and bytes that nobody meant to send never do harm.
 */
#include "proto/error.h"
#include "proto/frame.h"
#include "proto/message.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_KIND MESSAGE_COMM_JOIN
#define LAST_KIND  MESSAGE_GROUP_PLAN
#define LONG_AGO   (UINT64_C(1) << 50)

/* --- samples: one of each kind, every field set ------------------------- */

static double gather_caps[] = {0.5, 2000}, reduce_caps[] = {25};

static struct group_param params[] = {
	{"layers.0.weight", {DTYPE_F32, 2, {4096, 11}, {11, 1}}, -1, false},
	{"layers.0.scale", {.dtype = DTYPE_F64}, 0, true},
	{"embed/\xc3\xa4", {DTYPE_BF16, 3, {3, 0, 5}, {5, 5, 1}}, 2, false},
};

static struct tensor_place places[] = {
	{{5, 6}, 7, 4096, 640, 0, {DTYPE_U8, 1, {640}, {1}}, "", {0}, 0},
	{{8, LONG_AGO}, 9, 0, 640, 0, {DTYPE_U8, 1, {640}, {1}}, "", {0}, 0},
	{{10, 1}, 7, 64, 0, 0, {DTYPE_U8, 1, {0}, {1}}, "", {0}, 0},
};

static struct chunk_ref chunks[] = {
	{7, 0, 1 << 21, true, {{0}}, false, {0}},
	{9, 1023, UINT64_C(1) << 41, true, {{0}}, false, {0}}};

static struct group_entry entries[] = {
	{DTYPE_BF16, DTYPE_F32, 1, 3, 64, 128, 192, 256},
	{DTYPE_F64, 0, 0, 0, 0, LONG_AGO, 0, 0},
	{DTYPE_C128, DTYPE_C128, 7, INT64_MAX, UINT64_C(1) << 62, 1, 2, 3},
};

static struct comm_item comm_items[] = {
	{"job/1", 12, 1000, COMM_RUNNING, 8, 4, 7, 3, LONG_AGO, 5, 0, 2, 1,
	 UINT64_MAX, "", 5, true, COMM_HOME_WORKER},
	{"kept", 0, 0, COMM_KEPT, 1, 1, 0, 1, 1, 2, 60000, 0, 0, 0,
	 "rank 2 (pid 17, trainer) has died", 1, false, COMM_HOME_RANK},
};

static struct group_item group_items[] = {
	{"job/1", "layer.0", 12, 1, 2, 3, UINT64_MAX, 5, 6, true, 7, LONG_AGO},
	{"job/1", "layer.1", 1, 1, 0, 0, 1, 5, 0, false, 0, 0},
};

static struct plan_item plan_items[] = {
	{"w",
	 {DTYPE_F32, 2, {8, 3}, {3, 1}},
	 1,
	 DTYPE_BF16,
	 DTYPE_F16,
	 DTYPE_F32,
	 0,
	 1,
	 64,
	 128,
	 192,
	 256,
	 320,
	 LONG_AGO},
	{.name = "b",
	 .type = {DTYPE_I64, 1, {0}, {1}},
	 .full_dtype = DTYPE_I64,
	 .reduce_bucket = UINT32_MAX},
};

static struct request sample_request(uint16_t kind)
{
	struct request request = {.kind = kind};

	switch (kind) {
	case MESSAGE_COMM_JOIN:
		request.comm_join = (struct comm_join_request){
			.name = "job/1",
			.access = {0, 1000, 0660},
			.n_ranks = 8,
			.rank = 7,
			.n_shards = 4,
			.timeout_ms = INT32_MAX,
			.ttl_ms = MESSAGE_MAX_TTL_MS,
			.limiter = COMM_LIMITER_FAITHFUL,
			.limit = 3,
			.limit_bytes = LONG_AGO,
			.n_inputs = 5,
			.device = {{0, 7}},
			.n_local = 6,
			.has_nccl_id = true,
			.nccl_id = {0, 2, [MESSAGE_NCCL_ID_SIZE - 1] = 9},
			.home = COMM_HOME_WORKER,
		};
		break;
	case MESSAGE_COMM_FAIL:
		request.comm_fail = (struct comm_fail_request){7, "NCCL: no"};
		break;
	case MESSAGE_COMM_LEAVE:
		request.comm_leave.comm = UINT64_MAX;
		break;
	case MESSAGE_COMM_REMOVE:
		request.comm_remove.name = "job/1";
		break;
	case MESSAGE_GROUP:
		request.group = (struct group_request){
			12,        "layer.0", DTYPE_BF16,  DTYPE_F64,
			DTYPE_F32, 1,         true,        true,
			2,         1,         gather_caps, reduce_caps,
			3,         params};
		break;
	case MESSAGE_UNSHARD:
		request.unshard.group = LONG_AGO;
		break;
	case MESSAGE_RESHARD:
		request.reshard = (struct reshard_request){3, 2};
		break;
	case MESSAGE_INPUT:
		request.input = (struct input_request){3, -1};
		break;
	case MESSAGE_REDUCE:
		request.reduce = (struct reduce_request){
			3,
			{1, 2},
			REDUCE_ACCUMULATE | REDUCE_NO_ALL_REDUCE |
				REDUCE_FORCE_SUM,
			true,
			-1.5};
		break;
	case MESSAGE_COMMIT:
		request.commit = (struct commit_request){12, UINT64_MAX};
		break;
	case MESSAGE_WAIT:
		request.wait = (struct wait_request){12, 3, WORK_UNSHARD,
						     LONG_AGO, 250};
		break;
	case MESSAGE_COMMS:
		request.comms.cursor = UINT64_MAX;
		break;
	case MESSAGE_GROUPS:
		request.groups = (struct groups_request){"job/1", 4};
		break;
	case MESSAGE_GROUP_PLAN:
		request.group_plan =
			(struct group_plan_request){"job/1", "layer.0", 5};
		break;
	}
	return request;
}

static struct reply sample_reply(uint16_t kind)
{
	struct reply reply = {.kind = kind};

	switch (kind) {
	case MESSAGE_COMM_JOIN:
		reply.comm = (struct comm_reply){.comm = UINT64_MAX,
						 .step = LONG_AGO,
						 .has_nccl_id = true,
						 .nccl_id = {1, 0, 3}};
		break;
	case MESSAGE_GROUP:
		reply.group = (struct group_reply){.group = 3,
						   .hash = UINT64_MAX,
						   .step = LONG_AGO,
						   .side = 1,
						   .n_places = 3,
						   .n_entries = 3,
						   .entries = entries,
						   .n_chunks = 2,
						   .chunks = chunks};
		memcpy(reply.group.places, places, sizeof(places));
		break;
	case MESSAGE_UNSHARD:
	case MESSAGE_REDUCE:
	case MESSAGE_COMMIT:
		reply.work.sequence = LONG_AGO;
		break;
	case MESSAGE_INPUT:
	case MESSAGE_WAIT:
		reply.places = (struct places_reply){1, places, 2, chunks};
		break;
	case MESSAGE_COMMS:
		reply.comms = (struct comms_reply){2, comm_items, 9};
		break;
	case MESSAGE_GROUPS:
		reply.groups = (struct groups_reply){2, group_items, 9};
		break;
	case MESSAGE_GROUP_PLAN:
		reply.group_plan = (struct group_plan_reply){
			LONG_AGO, 16, 4, 1, true, 2, plan_items, 9};
		break;
	}
	return reply;
}

/* --- going there ----------------------------------------------------------
 */

struct bytes {
	uint8_t *data;
	size_t size;
};

static struct bytes request_bytes(const struct request *request)
{
	struct error err = ERROR_NULL;
	struct bytes bytes;

	cr_assert(zero(int,
		       request_encode(request, &bytes.data, &bytes.size, &err)),
		  "%s", err.msg);
	return bytes;
}

static struct bytes reply_bytes(const struct reply *reply)
{
	struct error err = ERROR_NULL;
	struct bytes bytes;

	cr_assert(
		zero(int, reply_encode(reply, &bytes.data, &bytes.size, &err)),
		"%s", err.msg);
	return bytes;
}

/* Encode, decode; the caller deinits. */
static struct request pass_request(const struct request *request)
{
	struct bytes bytes = request_bytes(request);
	struct error err = ERROR_NULL;
	struct request got;

	cr_assert(zero(int, request_decode(request->kind, bytes.data,
					   bytes.size, &got, &err)),
		  "%s", err.msg);
	free(bytes.data);
	return got;
}

static struct reply pass_reply(const struct reply *reply)
{
	struct bytes bytes = reply_bytes(reply);
	struct error err = ERROR_NULL;
	struct reply got;

	cr_assert(zero(int, reply_decode(reply->kind, reply->code, bytes.data,
					 bytes.size, &got, &err)),
		  "%s", err.msg);
	free(bytes.data);
	return got;
}

/* The code with which the broker would refuse it; 0 if it would not. */
static int refusal(const struct request *request)
{
	struct bytes bytes = request_bytes(request);
	struct error err = ERROR_NULL;
	struct request got;
	int r = request_decode(request->kind, bytes.data, bytes.size, &got,
			       &err);

	free(bytes.data);
	if (r == 0)
		request_deinit(&got);
	else
		cr_expect(ne(str, err.msg, ""));
	return r;
}

static int reply_refusal(const struct reply *reply)
{
	struct bytes bytes = reply_bytes(reply);
	struct error err = ERROR_NULL;
	struct reply got;
	int r = reply_decode(reply->kind, 0, bytes.data, bytes.size, &got,
			     &err);

	free(bytes.data);
	if (r == 0)
		reply_deinit(&got);
	else
		cr_expect(ne(str, err.msg, ""));
	return r;
}

#define expect_same(tag, a, b, field)                                          \
	cr_expect(eq(tag, (a).field, (b).field), #field)
#define expect_same_text(a, b, field)                                          \
	cr_expect(eq(str, (char *)(a).field, (char *)(b).field), #field)

static void expect_same_type(const struct tensor_type *a,
			     const struct tensor_type *b)
{
	expect_same(u32, *a, *b, dtype);
	expect_same(u32, *a, *b, n_dims);
	for (uint32_t i = 0; i < b->n_dims; i++) {
		expect_same(i64, *a, *b, shape[i]);
		expect_same(i64, *a, *b, strides[i]);
	}
}

static void expect_same_place(const struct tensor_place *a,
			      const struct tensor_place *b)
{
	expect_same(u32, *a, *b, ref.slot);
	expect_same(u64, *a, *b, ref.generation);
	expect_same(u32, *a, *b, chunk);
	expect_same(u64, *a, *b, offset);
	expect_same(u64, *a, *b, size);
	expect_same(u64, *a, *b, version);
	expect_same_type(&a->type, &b->type);
	expect_same_text(*a, *b, name);
}

static void expect_same_chunks(const struct chunk_ref *got, uint32_t n)
{
	cr_assert(eq(u32, n, 2));
	for (uint32_t i = 0; i < n; i++) {
		expect_same(u32, got[i], chunks[i], chunk);
		expect_same(u32, got[i], chunks[i], index);
		expect_same(u64, got[i], chunks[i], size);
		expect_same(int, got[i], chunks[i], is_writable);
	}
}

/* --- round trips ----------------------------------------------------------
 */

/* Catches what the tests of single kinds do not look at. */
Test(message_collective, everything_decoded_encodes_to_the_same_bytes)
{
	for (uint16_t kind = FIRST_KIND; kind <= LAST_KIND; kind++) {
		struct request request = sample_request(kind);
		struct request got = pass_request(&request);
		struct reply reply = sample_reply(kind);
		struct reply got_reply = pass_reply(&reply);
		struct bytes a = request_bytes(&request);
		struct bytes b = request_bytes(&got);
		struct bytes c = reply_bytes(&reply);
		struct bytes d = reply_bytes(&got_reply);

		cr_assert(eq(sz, a.size, b.size), "%u", kind);
		cr_expect(zero(int, memcmp(a.data, b.data, a.size)), "%u",
			  kind);
		cr_assert(eq(sz, c.size, d.size), "%u", kind);
		cr_expect(zero(int, memcmp(c.data, d.data, c.size)), "%u",
			  kind);
		cr_expect(ne(str, (char *)message_kind_name(kind), "?"));
		free(a.data);
		free(b.data);
		free(c.data);
		free(d.data);
		request_deinit(&got);
		reply_deinit(&got_reply);
	}
}

Test(message_collective, a_join_arrives)
{
	struct request sent = sample_request(MESSAGE_COMM_JOIN);
	struct request got = pass_request(&sent);

	expect_same_text(got.comm_join, sent.comm_join, name);
	expect_same(u32, got.comm_join, sent.comm_join, access.gid);
	expect_same(u32, got.comm_join, sent.comm_join, access.mode);
	expect_same(u32, got.comm_join, sent.comm_join, n_ranks);
	expect_same(u32, got.comm_join, sent.comm_join, rank);
	expect_same(u32, got.comm_join, sent.comm_join, n_shards);
	expect_same(int, got.comm_join, sent.comm_join, timeout_ms);
	expect_same(u64, got.comm_join, sent.comm_join, ttl_ms);
	expect_same(u32, got.comm_join, sent.comm_join, limiter);
	expect_same(u32, got.comm_join, sent.comm_join, limit);
	expect_same(u64, got.comm_join, sent.comm_join, limit_bytes);
	expect_same(u32, got.comm_join, sent.comm_join, n_inputs);
	expect_same(u32, got.comm_join, sent.comm_join, device.bytes[1]);
	expect_same(u32, got.comm_join, sent.comm_join, n_local);
	expect_same(u32, got.comm_join, sent.comm_join, home);
	cr_assert(got.comm_join.has_nccl_id);
	cr_expect(
		zero(int, memcmp(got.comm_join.nccl_id, sent.comm_join.nccl_id,
				 MESSAGE_NCCL_ID_SIZE)));
	request_deinit(&got);
}

Test(message_collective, ranks_that_do_the_work_may_register_memory)
{
	struct request sent = sample_request(MESSAGE_COMM_JOIN);
	struct request got;

	sent.comm_join.home = COMM_HOME_RANK;
	sent.comm_join.memory = COMM_MEMORY_REGISTERED;
	got = pass_request(&sent);
	expect_same(u32, got.comm_join, sent.comm_join, memory);
	request_deinit(&got);
	sent.comm_join.memory = 2;
	cr_expect(eq(int, refusal(&sent), -EINVAL));
}

Test(message_collective, on_host_memory_all_ranks_are_local)
{
	struct request sent = sample_request(MESSAGE_COMM_JOIN);
	struct request got;

	sent.comm_join.device = (struct device_uuid){{0}};
	sent.comm_join.has_nccl_id = false;
	sent.comm_join.n_local = 0;
	sent.comm_join.home = COMM_HOME_RANK;
	got = pass_request(&sent);
	cr_expect(eq(u32, got.comm_join.n_local, 8));
	cr_expect(not(got.comm_join.has_nccl_id));
	request_deinit(&got);
	sent.comm_join.memory = COMM_MEMORY_REGISTERED;
	cr_expect(eq(int, refusal(&sent), -EINVAL));
	sent.comm_join.memory = COMM_MEMORY_DEFAULT;
	cr_expect(
		eq(int, (sent.comm_join.n_local = 4, refusal(&sent)), -EINVAL));
}

Test(message_collective, a_failure_arrives)
{
	struct request sent = sample_request(MESSAGE_COMM_FAIL);
	struct request got = pass_request(&sent);

	expect_same(u64, got.comm_fail, sent.comm_fail, comm);
	expect_same_text(got.comm_fail, sent.comm_fail, sentence);
	request_deinit(&got);
}

Test(message_collective, shards_default_to_the_ranks)
{
	struct request sent = sample_request(MESSAGE_COMM_JOIN);
	struct request got;

	sent.comm_join.n_shards = 0;
	got = pass_request(&sent);
	cr_expect(eq(u32, got.comm_join.n_shards, 8));
	request_deinit(&got);
}

Test(message_collective, a_group_request_arrives)
{
	struct request sent = sample_request(MESSAGE_GROUP);
	struct request got = pass_request(&sent);

	expect_same(u64, got.group, sent.group, comm);
	expect_same_text(got.group, sent.group, name);
	expect_same(u32, got.group, sent.group, param_dtype);
	expect_same(u32, got.group, sent.group, input_dtype);
	expect_same(u32, got.group, sent.group, reduce_dtype);
	expect_same(u32, got.group, sent.group, layout);
	expect_same(int, got.group, sent.group, stays_unsharded);
	expect_same(int, got.group, sent.group, is_offloaded);
	cr_assert(eq(u32, got.group.n_gather_caps, 2));
	expect_same(dbl, got.group, sent.group, gather_caps_mb[0]);
	expect_same(dbl, got.group, sent.group, gather_caps_mb[1]);
	cr_assert(eq(u32, got.group.n_reduce_caps, 1));
	expect_same(dbl, got.group, sent.group, reduce_caps_mb[0]);
	cr_assert(eq(u32, got.group.n_params, 3));
	for (int i = 0; i < 3; i++) {
		expect_same_text(got.group.params[i], params[i], name);
		expect_same_type(&got.group.params[i].type, &params[i].type);
		expect_same(int, got.group.params[i], params[i], shard_dim);
		expect_same(int, got.group.params[i], params[i], is_frozen);
	}
	request_deinit(&got);
}

/* What a cap or a factor is worth is for the plan to say: NaN gets there. */
Test(message_collective, caps_and_factors_pass_as_they_are)
{
	struct request sent = sample_request(MESSAGE_GROUP), got;
	double caps[] = {NAN, -0.0, -INFINITY};

	sent.group.gather_caps_mb = caps;
	sent.group.n_gather_caps = 3;
	got = pass_request(&sent);
	cr_expect(zero(int,
		       memcmp(got.group.gather_caps_mb, caps, sizeof(caps))));
	request_deinit(&got);
	sent = sample_request(MESSAGE_REDUCE);
	sent.reduce.factor = NAN;
	got = pass_request(&sent);
	cr_expect(got.reduce.has_factor && isnan(got.reduce.factor));
	sent.reduce.factor = 0;
	got = pass_request(&sent);
	cr_expect(got.reduce.has_factor && got.reduce.factor == 0);
	sent.reduce.has_factor = false;
	sent.reduce.factor = 3;
	got = pass_request(&sent);
	cr_expect(zero(int, got.reduce.has_factor));
	cr_expect(zero(dbl, got.reduce.factor));
}

Test(message_collective, requests_of_work_arrive)
{
	struct request sent = sample_request(MESSAGE_RESHARD);
	struct request got = pass_request(&sent);

	expect_same(u64, got.reshard, sent.reshard, group);
	expect_same(u32, got.reshard, sent.reshard, n_mesh);
	sent = sample_request(MESSAGE_INPUT);
	got = pass_request(&sent);
	expect_same(u64, got.input, sent.input, group);
	expect_same(int, got.input, sent.input, timeout_ms);
	sent = sample_request(MESSAGE_REDUCE);
	got = pass_request(&sent);
	expect_same(u64, got.reduce, sent.reduce, group);
	expect_same(u32, got.reduce, sent.reduce, input.slot);
	expect_same(u64, got.reduce, sent.reduce, input.generation);
	expect_same(u32, got.reduce, sent.reduce, flags);
	expect_same(int, got.reduce, sent.reduce, has_factor);
	expect_same(dbl, got.reduce, sent.reduce, factor);
	sent = sample_request(MESSAGE_COMMIT);
	got = pass_request(&sent);
	expect_same(u64, got.commit, sent.commit, comm);
	expect_same(u64, got.commit, sent.commit, step);
	sent = sample_request(MESSAGE_WAIT);
	got = pass_request(&sent);
	expect_same(u64, got.wait, sent.wait, comm);
	expect_same(u64, got.wait, sent.wait, group);
	expect_same(u32, got.wait, sent.wait, kind);
	expect_same(u64, got.wait, sent.wait, sequence);
	expect_same(int, got.wait, sent.wait, timeout_ms);
}

Test(message_collective, requests_by_id_or_name_arrive)
{
	struct request sent = sample_request(MESSAGE_COMM_LEAVE);
	struct request got = pass_request(&sent);

	expect_same(u64, got, sent, comm_leave.comm);
	sent = sample_request(MESSAGE_UNSHARD);
	got = pass_request(&sent);
	expect_same(u64, got, sent, unshard.group);
	sent = sample_request(MESSAGE_COMMS);
	got = pass_request(&sent);
	expect_same(u64, got, sent, comms.cursor);
	sent = sample_request(MESSAGE_COMM_REMOVE);
	got = pass_request(&sent);
	expect_same_text(got, sent, comm_remove.name);
	request_deinit(&got);
	sent = sample_request(MESSAGE_GROUPS);
	got = pass_request(&sent);
	expect_same_text(got, sent, groups.comm);
	expect_same(u64, got, sent, groups.cursor);
	request_deinit(&got);
	sent.groups.comm = "";
	got = pass_request(&sent);
	cr_expect(eq(str, (char *)got.groups.comm, ""));
	request_deinit(&got);
	sent = sample_request(MESSAGE_GROUP_PLAN);
	got = pass_request(&sent);
	expect_same_text(got, sent, group_plan.comm);
	expect_same_text(got, sent, group_plan.group);
	expect_same(u64, got, sent, group_plan.cursor);
	request_deinit(&got);
}

Test(message_collective, replies_of_a_number_arrive)
{
	struct reply sent = sample_reply(MESSAGE_COMM_JOIN);
	struct reply got = pass_reply(&sent);

	expect_same(u64, got.comm, sent.comm, comm);
	expect_same(u64, got.comm, sent.comm, step);
	sent = sample_reply(MESSAGE_COMMIT);
	got = pass_reply(&sent);
	expect_same(u64, got, sent, work.sequence);
}

Test(message_collective, a_group_reply_arrives)
{
	struct reply sent = sample_reply(MESSAGE_GROUP);
	struct reply got = pass_reply(&sent);

	expect_same(u64, got.group, sent.group, group);
	expect_same(u64, got.group, sent.group, hash);
	expect_same(u64, got.group, sent.group, step);
	expect_same(u32, got.group, sent.group, side);
	cr_assert(eq(u32, got.group.n_places, 3));
	for (int i = 0; i < 3; i++)
		expect_same_place(&got.group.places[i], &places[i]);
	cr_assert(eq(u32, got.group.n_entries, 3));
	for (int i = 0; i < 3; i++) {
		const struct group_entry *entry = &got.group.entries[i];

		expect_same(u32, *entry, entries[i], full_dtype);
		expect_same(u32, *entry, entries[i], input_dtype);
		expect_same(u32, *entry, entries[i], shard_dim);
		expect_same(i64, *entry, entries[i], shard_size);
		expect_same(u64, *entry, entries[i], shard_offset);
		expect_same(u64, *entry, entries[i], full_offset);
		expect_same(u64, *entry, entries[i], input_offset);
		expect_same(u64, *entry, entries[i], grad_offset);
	}
	expect_same_chunks(got.group.chunks, got.group.n_chunks);
	reply_deinit(&got);
}

Test(message_collective, a_wait_brings_one_place_or_none)
{
	struct reply sent = sample_reply(MESSAGE_WAIT);
	struct reply got = pass_reply(&sent);

	cr_assert(eq(u32, got.places.n_places, 1));
	expect_same_place(got.places.places, places);
	reply_deinit(&got);
	sent.places = (struct places_reply){0};
	got = pass_reply(&sent);
	cr_expect(zero(u32, got.places.n_places));
	reply_deinit(&got);
}

Test(message_collective, communicators_arrive)
{
	struct reply sent = sample_reply(MESSAGE_COMMS);
	struct reply got = pass_reply(&sent);

	cr_assert(eq(u32, got.comms.n_items, 2));
	expect_same(u64, got.comms, sent.comms, next_cursor);
	for (int i = 0; i < 2; i++) {
		const struct comm_item *item = &got.comms.items[i];

		expect_same_text(*item, comm_items[i], name);
		expect_same(u64, *item, comm_items[i], comm);
		expect_same(u32, *item, comm_items[i], uid);
		expect_same(u32, *item, comm_items[i], state);
		expect_same(u32, *item, comm_items[i], n_ranks);
		expect_same(u32, *item, comm_items[i], n_shards);
		expect_same(u32, *item, comm_items[i], n_joined);
		expect_same(u32, *item, comm_items[i], n_groups);
		expect_same(u64, *item, comm_items[i], step);
		expect_same(u64, *item, comm_items[i], n_bytes);
		expect_same(u64, *item, comm_items[i], ttl_left_ms);
		expect_same(u32, *item, comm_items[i], n_in_flight);
		expect_same(u32, *item, comm_items[i], n_limited);
		expect_same(u64, *item, comm_items[i], bytes_in_flight);
		expect_same_text(*item, comm_items[i], note);
		expect_same(u32, *item, comm_items[i], n_local);
		expect_same(u32, *item, comm_items[i], home);
		cr_expect(eq(int, item->is_on_devices,
			     comm_items[i].is_on_devices));
	}
	reply_deinit(&got);
}

Test(message_collective, groups_arrive)
{
	struct reply sent = sample_reply(MESSAGE_GROUPS);
	struct reply got = pass_reply(&sent);

	cr_assert(eq(u32, got.groups.n_items, 2));
	expect_same(u64, got.groups, sent.groups, next_cursor);
	for (int i = 0; i < 2; i++) {
		const struct group_item *item = &got.groups.items[i];

		expect_same_text(*item, group_items[i], comm);
		expect_same_text(*item, group_items[i], name);
		expect_same(u32, *item, group_items[i], n_params);
		expect_same(u32, *item, group_items[i], n_gather_buckets);
		expect_same(u32, *item, group_items[i], n_reduce_buckets);
		expect_same(u64, *item, group_items[i], step);
		expect_same(u64, *item, group_items[i], hash);
		expect_same(u64, *item, group_items[i], shards_bytes);
		expect_same(u64, *item, group_items[i], full_bytes);
		expect_same(int, *item, group_items[i], is_unsharded);
		expect_same(u64, *item, group_items[i], n_gathers);
		expect_same(u64, *item, group_items[i], n_reductions);
	}
	reply_deinit(&got);
}

Test(message_collective, a_plan_arrives)
{
	struct reply sent = sample_reply(MESSAGE_GROUP_PLAN);
	struct reply got = pass_reply(&sent);

	expect_same(u64, got.group_plan, sent.group_plan, hash);
	expect_same(u32, got.group_plan, sent.group_plan, n_shards);
	expect_same(u32, got.group_plan, sent.group_plan, n_replicas);
	expect_same(u32, got.group_plan, sent.group_plan, layout);
	expect_same(int, got.group_plan, sent.group_plan, is_in_place);
	expect_same(u64, got.group_plan, sent.group_plan, next_cursor);
	cr_assert(eq(u32, got.group_plan.n_items, 2));
	for (int i = 0; i < 2; i++) {
		const struct plan_item *item = &got.group_plan.items[i];

		expect_same_text(*item, plan_items[i], name);
		expect_same_type(&item->type, &plan_items[i].type);
		expect_same(u32, *item, plan_items[i], shard_dim);
		expect_same(u32, *item, plan_items[i], full_dtype);
		expect_same(u32, *item, plan_items[i], input_dtype);
		expect_same(u32, *item, plan_items[i], reduce_dtype);
		expect_same(u32, *item, plan_items[i], gather_bucket);
		expect_same(u32, *item, plan_items[i], reduce_bucket);
		expect_same(u64, *item, plan_items[i], shard_offset);
		expect_same(u64, *item, plan_items[i], shard_stride);
		expect_same(u64, *item, plan_items[i], full_offset);
		expect_same(u64, *item, plan_items[i], input_offset);
		expect_same(u64, *item, plan_items[i], grad_offset);
		expect_same(u64, *item, plan_items[i], chunk_bytes);
	}
	reply_deinit(&got);
}

Test(message_collective, the_largest_group_reply_fits_a_frame)
{
	struct group_entry *many = calloc(MESSAGE_MAX_PARAMS, sizeof(*many));
	struct reply got, sent = sample_reply(MESSAGE_GROUP);
	struct chunk_ref refs[3];

	for (int i = 0; i < 3; i++)
		refs[i] = (struct chunk_ref){UINT32_MAX, 1023,  INT64_MAX, 1,
					     {{0}},      false, {0}};
	for (int i = 0; i < MESSAGE_MAX_PARAMS; i++)
		many[i] = (struct group_entry){
			DTYPE_F64,         DTYPE_F64,         7,
			INT64_MAX,         UINT64_C(1) << 62, UINT64_C(1) << 62,
			UINT64_C(1) << 62, UINT64_C(1) << 62};
	sent.group.n_entries = MESSAGE_MAX_PARAMS;
	sent.group.entries = many;
	sent.group.n_chunks = 3;
	sent.group.chunks = refs;
	got = pass_reply(&sent);
	cr_expect(eq(u32, got.group.n_entries, MESSAGE_MAX_PARAMS));
	reply_deinit(&got);
	free(many);
}

/* Names as models have them: 1,024 of 42 bytes. */
Test(message_collective, a_group_of_the_most_parameters_fits_a_frame)
{
	struct group_param *many =
		calloc(MESSAGE_MAX_PARAMS + 1, sizeof(*many));
	char(*names)[64] = calloc(MESSAGE_MAX_PARAMS, sizeof(*names));
	struct request got, sent = sample_request(MESSAGE_GROUP);

	for (int i = 0; i < MESSAGE_MAX_PARAMS; i++) {
		snprintf(names[i], sizeof(names[i]),
			 "model.layers.%04d.self_attn.q_proj.weight", i);
		many[i] = (struct group_param){
			names[i],
			{DTYPE_BF16, 2, {16384, 16384}, {16384, 1}},
			0,
			false};
	}
	sent.group.params = many;
	sent.group.n_params = MESSAGE_MAX_PARAMS;
	got = pass_request(&sent);
	cr_assert(eq(u32, got.group.n_params, MESSAGE_MAX_PARAMS));
	expect_same_text(got.group.params[1023], many[1023], name);
	request_deinit(&got);
	for (int i = 0; i <= MESSAGE_MAX_PARAMS; i++)
		many[i] = params[1];
	sent.group.n_params++;
	cr_expect(eq(int, refusal(&sent), -E2BIG));
	free(many);
	free(names);
}

Test(message_collective, chunks_put_behind_a_reply_are_added_to_it)
{
	static const uint16_t kinds[] = {MESSAGE_GROUP, MESSAGE_INPUT,
					 MESSAGE_WAIT};

	for (int i = 0; i < 3; i++) {
		struct reply got, sent = sample_reply(kinds[i]);
		struct bytes body, more;
		uint8_t *all;

		if (kinds[i] == MESSAGE_GROUP)
			sent.group.n_chunks = 1;
		else
			sent.places.n_chunks = 1;
		body = reply_bytes(&sent);
		cr_assert(zero(int, chunk_refs_encode(kinds[i], &chunks[1], 1,
						      &more.data, &more.size,
						      NULL)));
		all = malloc(body.size + more.size);
		memcpy(all, body.data, body.size);
		memcpy(all + body.size, more.data, more.size);
		cr_assert(zero(int, reply_decode(kinds[i], 0, all,
						 body.size + more.size, &got,
						 NULL)));
		if (kinds[i] == MESSAGE_GROUP)
			expect_same_chunks(got.group.chunks,
					   got.group.n_chunks);
		else
			expect_same_chunks(got.places.chunks,
					   got.places.n_chunks);
		reply_deinit(&got);
		free(body.data);
		free(more.data);
		free(all);
	}
}

/* --- refusals ---------------------------------------------------------------
 */

#define expect_refusal(kind, change, code)                                     \
	do {                                                                   \
		struct request request = sample_request(kind);                 \
		change;                                                        \
		cr_expect(eq(int, refusal(&request), code), #change);          \
	} while (0)

Test(message_collective, wrong_values_in_a_join_are_refused)
{
#define join request.comm_join
	expect_refusal(MESSAGE_COMM_JOIN, join.name = "", -EINVAL);
	expect_refusal(MESSAGE_COMM_JOIN, join.name = "job/", -EINVAL);
	expect_refusal(MESSAGE_COMM_JOIN, join.access.mode = 0700, -EINVAL);
	expect_refusal(MESSAGE_COMM_JOIN, join.n_ranks = 0, -EINVAL);
	expect_refusal(
		MESSAGE_COMM_JOIN,
		(join.n_ranks = MESSAGE_MAX_WORLD + 1, join.n_shards = 0),
		-EINVAL);
	expect_refusal(MESSAGE_COMM_JOIN, join.n_local = 9, -EINVAL);
	expect_refusal(MESSAGE_COMM_JOIN,
		       (join.n_ranks = 128, join.n_shards = 0,
			join.n_local = MESSAGE_MAX_RANKS + 1),
		       -EINVAL);
	expect_refusal(MESSAGE_COMM_JOIN, join.device.bytes[1] = 0, -EINVAL);
	expect_refusal(MESSAGE_COMM_JOIN, join.home = 2, -EINVAL);
	expect_refusal(MESSAGE_COMM_JOIN, join.memory = COMM_MEMORY_REGISTERED,
		       -EINVAL);
	expect_refusal(MESSAGE_COMM_JOIN,
		       (join.device = (struct device_uuid){{0}},
			join.n_local = 0, join.has_nccl_id = false),
		       -EINVAL);
	expect_refusal(MESSAGE_COMM_JOIN, join.rank = 8, -EINVAL);
	expect_refusal(MESSAGE_COMM_JOIN, join.n_shards = 3, -EINVAL);
	expect_refusal(MESSAGE_COMM_JOIN, join.n_shards = 16, -EINVAL);
	expect_refusal(MESSAGE_COMM_JOIN, join.timeout_ms = 0, -EINVAL);
	expect_refusal(MESSAGE_COMM_JOIN, join.timeout_ms = -1, -EINVAL);
	expect_refusal(MESSAGE_COMM_JOIN, join.ttl_ms = 0, -EINVAL);
	expect_refusal(MESSAGE_COMM_JOIN, join.ttl_ms++, -EINVAL);
	expect_refusal(MESSAGE_COMM_JOIN, join.limiter = 2, -EINVAL);
	expect_refusal(MESSAGE_COMM_JOIN, join.limit_bytes = UINT64_MAX,
		       -EOVERFLOW);
	expect_refusal(MESSAGE_COMM_JOIN, join.n_inputs = 0, -EINVAL);
#undef join
}

Test(message_collective, wrong_values_in_a_group_are_refused)
{
	static double caps[MESSAGE_MAX_CAPS + 1];
	struct group_param many[2];

	memcpy(many, params, sizeof(many));
#define of request.group
	expect_refusal(MESSAGE_GROUP, of.comm = 0, -EINVAL);
	expect_refusal(MESSAGE_GROUP, of.name = "a//b", -EINVAL);
	expect_refusal(MESSAGE_GROUP, of.param_dtype = DTYPE_MAX + 1, -EINVAL);
	expect_refusal(MESSAGE_GROUP, of.input_dtype = 99, -EINVAL);
	expect_refusal(MESSAGE_GROUP, of.reduce_dtype = UINT32_MAX, -EINVAL);
	expect_refusal(MESSAGE_GROUP, of.layout = 2, -EINVAL);
	expect_refusal(MESSAGE_GROUP, of.n_params = 0, -EINVAL);
	expect_refusal(MESSAGE_GROUP,
		       (of.gather_caps_mb = caps,
			of.n_gather_caps = MESSAGE_MAX_CAPS + 1),
		       -E2BIG);
	expect_refusal(MESSAGE_GROUP,
		       (of.reduce_caps_mb = caps,
			of.n_reduce_caps = MESSAGE_MAX_CAPS + 1),
		       -E2BIG);
	expect_refusal(MESSAGE_GROUP,
		       (of.params = many, many[0].name = "", of.n_params = 2),
		       -EINVAL);
	many[0].name = "x";
	expect_refusal(
		MESSAGE_GROUP,
		(of.params = many, many[1].type.dtype = 0, of.n_params = 2),
		-EINVAL);
	many[1].type.dtype = DTYPE_F32;
	expect_refusal(MESSAGE_GROUP,
		       (of.params = many, many[0].type.shape[0] = INT64_MAX,
			of.n_params = 2),
		       -EOVERFLOW);
#undef of
}

Test(message_collective, wrong_values_in_requests_of_work_are_refused)
{
	expect_refusal(MESSAGE_COMM_LEAVE, request.comm_leave.comm = 0,
		       -EINVAL);
	expect_refusal(MESSAGE_COMM_REMOVE, request.comm_remove.name = "",
		       -EINVAL);
	expect_refusal(MESSAGE_UNSHARD, request.unshard.group = 0, -EINVAL);
	expect_refusal(MESSAGE_RESHARD, request.reshard.group = 0, -EINVAL);
	expect_refusal(MESSAGE_RESHARD,
		       request.reshard.n_mesh = MESSAGE_MAX_WORLD + 1, -EINVAL);
	expect_refusal(MESSAGE_INPUT, request.input.group = 0, -EINVAL);
	expect_refusal(MESSAGE_INPUT, request.input.timeout_ms = -2, -EINVAL);
	expect_refusal(MESSAGE_REDUCE, request.reduce.group = 0, -EINVAL);
	expect_refusal(MESSAGE_REDUCE, request.reduce.input.slot = 0, -EINVAL);
	expect_refusal(MESSAGE_REDUCE, request.reduce.flags = 8, -EINVAL);
	expect_refusal(MESSAGE_COMMIT, request.commit.comm = 0, -EINVAL);
	expect_refusal(MESSAGE_COMMIT, request.commit.step = 0, -EINVAL);
	expect_refusal(MESSAGE_WAIT, request.wait.comm = 0, -EINVAL);
	expect_refusal(MESSAGE_WAIT, request.wait.kind = 0, -EINVAL);
	expect_refusal(MESSAGE_WAIT, request.wait.kind = 4, -EINVAL);
	expect_refusal(MESSAGE_WAIT, request.wait.group = 0, -EINVAL);
	expect_refusal(MESSAGE_WAIT, request.wait.kind = WORK_COMMIT, -EINVAL);
	expect_refusal(
		MESSAGE_WAIT,
		(request.wait.kind = WORK_REDUCE, request.wait.sequence = 0),
		-EINVAL);
	/* The one that is open. */
	expect_refusal(
		MESSAGE_WAIT,
		(request.wait.kind = WORK_UNSHARD, request.wait.sequence = 0),
		0);
	expect_refusal(MESSAGE_WAIT, request.wait.timeout_ms = -2, -EINVAL);
	expect_refusal(
		MESSAGE_WAIT,
		(request.wait.kind = WORK_COMMIT, request.wait.group = 0), 0);
	expect_refusal(MESSAGE_GROUPS, request.groups.comm = "a/", -EINVAL);
	expect_refusal(MESSAGE_GROUP_PLAN, request.group_plan.comm = "",
		       -EINVAL);
	expect_refusal(MESSAGE_GROUP_PLAN, request.group_plan.group = "",
		       -EINVAL);
}

#define expect_reply_refusal(kind, change, code)                               \
	do {                                                                   \
		struct reply reply = sample_reply(kind);                       \
		change;                                                        \
		cr_expect(eq(int, reply_refusal(&reply), code), #change);      \
	} while (0)

/* Change one entry of a copy, so that the samples stay as they are. */
#define expect_entry_refusal(change, code)                                     \
	do {                                                                   \
		struct reply reply = sample_reply(MESSAGE_GROUP);              \
		struct group_entry entry = entries[0];                         \
		reply.group.entries = &entry;                                  \
		reply.group.n_entries = 1;                                     \
		change;                                                        \
		cr_expect(eq(int, reply_refusal(&reply), code), #change);      \
	} while (0)

Test(message_collective, wrong_values_in_a_group_reply_are_refused)
{
	expect_reply_refusal(MESSAGE_GROUP, reply.group.group = 0, -EINVAL);
	expect_reply_refusal(MESSAGE_GROUP, reply.group.side = 2, -EPROTO);
	expect_reply_refusal(MESSAGE_GROUP, reply.group.n_places = 1, -EPROTO);
	expect_reply_refusal(MESSAGE_GROUP, reply.group.n_places = 0, -EPROTO);
	expect_reply_refusal(MESSAGE_GROUP, reply.group.n_entries = 0, -EINVAL);
	expect_reply_refusal(MESSAGE_GROUP,
			     reply.group.places[1].type.dtype = DTYPE_I8,
			     -EPROTO);
	expect_reply_refusal(MESSAGE_GROUP, reply.group.places[1].size = 704,
			     -EPROTO);
	expect_entry_refusal(entry.full_dtype = 0, -EINVAL);
	expect_entry_refusal(entry.input_dtype = 99, -EINVAL);
	expect_entry_refusal(entry.shard_dim = TENSOR_MAX_DIMS, -EPROTO);
	expect_entry_refusal(entry.shard_size = -1, -EPROTO);
	expect_entry_refusal(entry.shard_offset = UINT64_MAX, -EOVERFLOW);
	expect_entry_refusal(entry.full_offset = UINT64_MAX, -EOVERFLOW);
	expect_entry_refusal(entry.input_offset = UINT64_MAX, -EOVERFLOW);
	expect_entry_refusal(entry.grad_offset = UINT64_MAX, -EOVERFLOW);
}

Test(message_collective, wrong_values_in_other_replies_are_refused)
{
	struct comm_item comm = comm_items[0];
	struct group_item group = group_items[0];
	struct plan_item plan = plan_items[0];

	expect_reply_refusal(MESSAGE_COMM_JOIN, reply.comm.comm = 0, -EINVAL);
	expect_reply_refusal(MESSAGE_UNSHARD, reply.work.sequence = 0, -EINVAL);
	comm.state = COMM_FAILED + 1;
	expect_reply_refusal(MESSAGE_COMMS,
			     reply.comms = ((struct comms_reply){1, &comm, 0}),
			     -EPROTO);
	comm = comm_items[0];
	comm.n_shards = 0;
	expect_reply_refusal(MESSAGE_COMMS,
			     reply.comms = ((struct comms_reply){1, &comm, 0}),
			     -EPROTO);
	group.name = "";
	expect_reply_refusal(
		MESSAGE_GROUPS,
		reply.groups = ((struct groups_reply){1, &group, 0}), -EINVAL);
	expect_reply_refusal(MESSAGE_GROUP_PLAN, reply.group_plan.n_shards = 0,
			     -EPROTO);
	expect_reply_refusal(MESSAGE_GROUP_PLAN,
			     reply.group_plan.n_replicas = MESSAGE_MAX_WORLD,
			     -EPROTO);
	expect_reply_refusal(MESSAGE_GROUP_PLAN, reply.group_plan.layout = 2,
			     -EPROTO);
	plan.input_dtype = 99;
	expect_reply_refusal(
		MESSAGE_GROUP_PLAN,
		(reply.group_plan.n_items = 1, reply.group_plan.items = &plan),
		-EINVAL);
	plan = plan_items[0];
	plan.reduce_dtype = 99;
	expect_reply_refusal(
		MESSAGE_GROUP_PLAN,
		(reply.group_plan.n_items = 1, reply.group_plan.items = &plan),
		-EINVAL);
}

/* Columns of 2 dtypes, 1 dimension. */
Test(message_collective, columns_that_differ_in_length_are_refused)
{
	struct reply got, sent = sample_reply(MESSAGE_GROUP);
	static const uint8_t more[] = {6 << 3 | 2, 2, DTYPE_F32, DTYPE_F32};
	struct bytes body = reply_bytes(&sent);
	uint8_t *all = malloc(body.size + sizeof(more));

	/* A later value of a field that is not repeated replaces the first. */
	memcpy(all, body.data, body.size);
	memcpy(all + body.size, more, sizeof(more));
	cr_expect(eq(int,
		     reply_decode(MESSAGE_GROUP, 0, all,
				  body.size + sizeof(more), &got, NULL),
		     -EPROTO));
	free(body.data);
	free(all);
}

/* --- noise ------------------------------------------------------------------
 */

/* Of a fixed seed, so that what fails once fails always. */
static uint32_t next_random(uint32_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 17;
	*state ^= *state << 5;
	return *state;
}

static void decode_and_drop(uint16_t kind, int is_reply, const uint8_t *body,
			    size_t size)
{
	struct error err = ERROR_NULL;
	struct request request;
	struct reply reply;

	if (is_reply) {
		if (reply_decode(kind, 0, body, size, &reply, &err) == 0)
			reply_deinit(&reply);
	} else if (request_decode(kind, body, size, &request, &err) == 0) {
		request_deinit(&request);
	}
}

static void mutate_and_decode(uint16_t kind, int is_reply, struct bytes bytes,
			      uint32_t *seed)
{
	uint8_t *copy = malloc(bytes.size + 1);

	/* Exactly as large at its end, so that ASan sees a read past it. */
	for (int round = 0; round < 1000 && bytes.size > 0; round++) {
		size_t size = next_random(seed) % bytes.size + 1;
		uint32_t n = next_random(seed) % 4;
		uint8_t *body = copy + 1;

		memcpy(body, bytes.data, bytes.size);
		while (n-- > 0)
			body[next_random(seed) % bytes.size] =
				(uint8_t)next_random(seed);
		decode_and_drop(kind, is_reply, body, bytes.size);
		decode_and_drop(kind, is_reply, body + bytes.size - size, size);
	}
	free(copy);
	free(bytes.data);
}

Test(message_collective, mutated_bodies_never_crash, .timeout = 60)
{
	uint32_t seed = 2463534242;

	for (uint16_t kind = FIRST_KIND; kind <= LAST_KIND; kind++) {
		struct request request = sample_request(kind);
		struct reply reply = sample_reply(kind);

		mutate_and_decode(kind, 0, request_bytes(&request), &seed);
		mutate_and_decode(kind, 1, reply_bytes(&reply), &seed);
	}
}
