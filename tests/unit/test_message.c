/*
 * Messages: what is sent arrives with every field, what is wrong is refused,
 * and bytes that nobody meant to send never do harm.
 */
#include "proto/error.h"
#include "proto/frame.h"
#include "proto/message.h"
#include "proto/name.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LONG_AGO (UINT64_C(1) << 50)

/* --- samples: one of each kind, every field set ------------------------- */

static const struct device_uuid gpu = {{0xde, 0xad, 0, 1, [15] = 0xff}};
static const char *names[] = {"llama/w.0", "b", "\xc3\xa4/x"};
static const uint8_t tickets[2][TICKET_SIZE] = {{1, 2, 3, 0, 5}, {9}};
static uint32_t chunk_ids[] = {3, UINT32_MAX};
static uint64_t versions[] = {1, 0, UINT64_MAX};

static struct alloc_item alloc_items[] = {
	{.type = {DTYPE_BF16, 2, {3, 4}, {4, 1}}, .name = "llama/w"},
	{.type = {DTYPE_F32, 2, {3, 4}, {1, 3}},
	 .is_view = true,
	 .base = {8, LONG_AGO},
	 .base_offset = 64,
	 .name = "llama/w.T"},
	{.type = {.dtype = DTYPE_I64}, .name = "llama/step"},
};

static struct publish_item publish_items[] = {
	{{1, 2},
	 "x/y",
	 PUBLISH_REPLACE | PUBLISH_MUST_EXIST,
	 10,
	 MESSAGE_MAX_TIMELINES - 1,
	 INT64_MAX - 1,
	 NULL},
	{{UINT32_MAX, UINT64_MAX},
	 "",
	 PUBLISH_EVICTABLE | PUBLISH_TIED,
	 0,
	 0,
	 0,
	 NULL},
};

static struct share_item share_items[] = {
	{{DTYPE_BF16, 2, {3, 4}, {4, 1}}, 6},
	{{DTYPE_F32, 2, {3, 4}, {1, 3}}, LONG_AGO - 48}, /* to the end */
	{{DTYPE_C128, 1, {0}, {1}}, 0},
};

static struct release_item release_items[] = {{{1, 2}, 1}, {{3, 4}, INT32_MAX}};

static struct tensor_place places[] = {
	{{5, 6},
	 7,
	 4096,
	 24,
	 2,
	 {DTYPE_BF16, 2, {3, 4}, {4, 1}},
	 "",
	 {LONG_AGO, 3, 4},
	 false},
	{{8, LONG_AGO},
	 9,
	 UINT64_C(1) << 40,
	 64,
	 0,
	 {DTYPE_F32, 3, {2, 2, 2}, {1, 2, 8}},
	 "llama/x",
	 {0},
	 true},
	{{10, 1}, 0, 0, 0, 0, {DTYPE_U8, 1, {0}, {1}}, "", {0}, false},
	{{11, 1},
	 7,
	 0,
	 8,
	 1,
	 {.dtype = DTYPE_F64},
	 "y",
	 {UINT64_MAX, 1, INT64_MAX - 1},
	 true},
};

static struct chunk_ref chunks[] = {{7, 0, 1 << 21, true, {{0}}, false, {0}},
				    {9,
				     1023,
				     UINT64_C(1) << 41,
				     false,
				     {{0xde, 0xad, 0, 1, [15] = 0xff}},
				     true,
				     {'m', [MESSAGE_HANDLE_SIZE - 1] = 7}}};

static struct holder holders[] = {
	{1, 2, 3, "trainer", -4, true, false},
	{UINT64_MAX, UINT32_MAX, 1000, "", INT64_MAX, false, true},
};

static struct client_item clients[] = {
	{1, 2, 3, "python3", true, 4, 5, 6, 7, 8},
	{2, 3, 4, "", false, UINT64_MAX, 0, 1, 2, UINT32_MAX},
};

static struct prefix_item prefixes[] = {
	{"llama", 1000, 2, UINT32_MAX, false, UINT64_MAX},
	{"x", UINT32_MAX, 0, 0, true, 0},
};

static struct ticket_item ticket_items[] = {
	{UINT64_MAX, {1, 2}, "a/b", 3, 4, 5, 6, 7, 8},
	{1, {2, LONG_AGO}, "", UINT64_MAX, 0, 1, UINT32_MAX, 2, 3},
};

static struct status_value values[] = {{"bytes_used", UINT64_MAX},
				       {"sessions", 0}};

static struct list_item list_items[3];

/* Kinds of collectives are in test_message_collective.c. 0: no more. */
static uint16_t next_kind(uint16_t kind)
{
	switch (kind) {
	case MESSAGE_STATUS:
		return MESSAGE_TIMELINES;
	case MESSAGE_TIMELINES:
		return MESSAGE_SHARE;
	case MESSAGE_SHARE:
		return MESSAGE_UNSHARE;
	case MESSAGE_UNSHARE:
		return MESSAGE_PREFIXES;
	case MESSAGE_PREFIXES:
		return MESSAGE_TICKETS;
	case MESSAGE_TICKETS:
		return MESSAGE_REVOKE;
	default:
		return kind < MESSAGE_STATUS ? kind + 1 : 0;
	}
}

static struct request sample_request(uint16_t kind)
{
	struct request request = {.kind = kind};

	switch (kind) {
	case MESSAGE_HELLO:
		request.hello = (struct hello_request){
			1, 2, true, LONG_AGO, {1, 0, 3}, UINT64_MAX};
		break;
	case MESSAGE_CHALLENGE:
		request.challenge.nonce = UINT64_MAX;
		break;
	case MESSAGE_ALLOC:
		request.alloc = (struct alloc_request){
			{0, 1000, 0640}, 12, -1, 3, alloc_items, gpu};
		break;
	case MESSAGE_PUBLISH:
		request.publish = (struct publish_request){2, publish_items};
		break;
	case MESSAGE_GET:
		request.get = (struct get_request){250, true, 0, 3, names, 7};
		break;
	case MESSAGE_RELEASE:
		request.release = (struct release_request){2, release_items};
		break;
	case MESSAGE_REMOVE:
		request.remove = (struct remove_request){3, names};
		break;
	case MESSAGE_TICKET:
		request.ticket = (struct ticket_request){{1, 2}, 3, 4};
		break;
	case MESSAGE_REDEEM:
		request.redeem = (struct redeem_request){2, tickets};
		break;
	case MESSAGE_BUNDLE_BEGIN:
		request.bundle_begin = (struct bundle_begin_request){
			"llama/",           {0, GID_DEFAULT, 0666},
			LONG_AGO,           PUBLISH_REPLACE | PUBLISH_TIED,
			MESSAGE_MAX_TTL_MS, gpu};
		break;
	case MESSAGE_BUNDLE_COMMIT:
	case MESSAGE_BUNDLE_ABORT:
		request.bundle_end.bundle = UINT64_MAX;
		break;
	case MESSAGE_BUNDLE_GET:
		request.bundle_get = (struct bundle_get_request){
			"llama/", INT32_MAX, true, 1000, UINT64_MAX};
		break;
	case MESSAGE_CHUNK:
		request.chunk = (struct chunk_request){2, chunk_ids};
		break;
	case MESSAGE_LIST:
		request.list = (struct list_request){"lla", LIST_LIMBO, 9};
		break;
	case MESSAGE_WHO:
		request.who = (struct who_request){"", {3, 4}, 5};
		break;
	case MESSAGE_CLIENTS:
		request.clients.cursor = UINT64_MAX;
		break;
	case MESSAGE_STATUS:
		request.status.resets = true;
		break;
	case MESSAGE_PREFIXES:
		request.prefixes.cursor = LONG_AGO;
		break;
	case MESSAGE_TIMELINES:
		request.timelines =
			(struct timelines_request){LONG_AGO, {3, 4}, true};
		break;
	case MESSAGE_SHARE:
		request.share = (struct share_request){
			gpu, {0, 1000, 0640}, true, {'m', 0, 1}, LONG_AGO,
			3,   share_items};
		break;
	case MESSAGE_TICKETS:
		request.tickets.cursor = UINT64_MAX;
		break;
	case MESSAGE_REVOKE:
		request.revoke.ticket = UINT64_MAX - 1;
		break;
	case MESSAGE_UNSHARE:
		request.unshare = (struct unshare_request){{1, LONG_AGO}, -1};
		break;
	}
	return request;
}

static struct list_reply sample_list(void)
{
	const struct device_uuid host = {{0}};

	for (uint32_t i = 0; i < 3; i++)
		list_items[i] = (struct list_item){places[i],
						   {i, i + 1, 0644},
						   i,
						   i + 2,
						   LONG_AGO,
						   i + 3,
						   PUBLISH_TIED,
						   i + 4,
						   i ? gpu : host,
						   i,
						   LONG_AGO + i,
						   UINT64_MAX,
						   i + 5,
						   i + 6,
						   i + 7,
						   i + 8,
						   i == 1,
						   i == 1 ? 6 : 0};
	return (struct list_reply){3, list_items, UINT64_MAX};
}

static struct reply sample_reply(uint16_t kind)
{
	struct reply reply = {.kind = kind};

	switch (kind) {
	case MESSAGE_HELLO:
	case MESSAGE_CHALLENGE:
		reply.hello = (struct hello_reply){
			false, 0, UINT64_MAX, {0, 1, 2}, 1 << 20};
		break;
	case MESSAGE_ALLOC:
	case MESSAGE_SHARE:
	case MESSAGE_GET:
	case MESSAGE_REDEEM:
		reply.places = (struct places_reply){4, places, 2, chunks};
		break;
	case MESSAGE_PUBLISH:
		reply.versions = (struct versions_reply){3, versions};
		break;
	case MESSAGE_TICKET:
		memcpy(reply.ticket.ticket, tickets[0], TICKET_SIZE);
		break;
	case MESSAGE_BUNDLE_BEGIN:
	case MESSAGE_BUNDLE_COMMIT:
		reply.bundle = (struct bundle_reply){3, UINT64_MAX};
		break;
	case MESSAGE_BUNDLE_GET:
		reply.bundle_get = (struct bundle_get_reply){
			1, 2, MESSAGE_MAX_PLACES, 4096, 2, chunks};
		break;
	case MESSAGE_CHUNK:
		reply.chunks = (struct chunks_reply){2, chunks};
		break;
	case MESSAGE_LIST:
		reply.list = sample_list();
		break;
	case MESSAGE_WHO:
		reply.who = (struct who_reply){places[1], 3,       4,
					       2,         holders, UINT64_MAX};
		break;
	case MESSAGE_CLIENTS:
		reply.clients = (struct clients_reply){2, clients, 5};
		break;
	case MESSAGE_PREFIXES:
		reply.prefixes = (struct prefixes_reply){2, prefixes, 5};
		break;
	case MESSAGE_TICKETS:
		reply.tickets = (struct tickets_reply){2, ticket_items, 6};
		break;
	case MESSAGE_STATUS:
		reply.status =
			(struct status_reply){"0.1.0", "note", 2, values};
		break;
	case MESSAGE_TIMELINES:
		reply.timelines.session = UINT64_MAX;
		break;
	}
	return reply;
}

/* --- going there -----------------------------------------------------------
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
	cr_assert(eq(u16, got.kind, request->kind));
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
	cr_assert(eq(u16, got.kind, reply->kind));
	cr_assert(eq(int, got.code, reply->code));
	return got;
}

/* The code with which the broker would refuse it. */
static int refusal(const struct request *request)
{
	struct bytes bytes = request_bytes(request);
	struct error err = ERROR_NULL;
	struct request got = {.kind = 99};
	int r = request_decode(request->kind, bytes.data, bytes.size, &got,
			       &err);

	free(bytes.data);
	cr_assert(lt(int, r, 0));
	cr_assert(ne(str, err.msg, ""));
	cr_assert(eq(u16, got.kind, 99));
	return r;
}

static int reply_refusal(const struct reply *reply)
{
	struct bytes bytes = reply_bytes(reply);
	struct error err = ERROR_NULL;
	struct reply got = {.kind = 99};
	int r = reply_decode(reply->kind, reply->code, bytes.data, bytes.size,
			     &got, &err);

	free(bytes.data);
	cr_assert(lt(int, r, 0));
	cr_assert(ne(str, err.msg, ""));
	cr_assert(eq(u16, got.kind, 99));
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
	cr_expect(zero(int, memcmp(a->shape, b->shape, sizeof(a->shape))));
	cr_expect(
		zero(int, memcmp(a->strides, b->strides, sizeof(a->strides))));
}

static void expect_same_device(const struct device_uuid *a,
			       const struct device_uuid *b)
{
	cr_expect(zero(int, memcmp(a, b, sizeof(*a))), "device");
}

static void expect_same_ref(struct slot_ref a, struct slot_ref b)
{
	expect_same(u32, a, b, slot);
	expect_same(u64, a, b, generation);
}

static void expect_same_place(const struct tensor_place *a,
			      const struct tensor_place *b)
{
	expect_same_ref(a->ref, b->ref);
	expect_same(u32, *a, *b, chunk);
	expect_same(u64, *a, *b, offset);
	expect_same(u64, *a, *b, size);
	expect_same(u64, *a, *b, version);
	expect_same_type(&a->type, &b->type);
	expect_same_text(*a, *b, name);
	expect_same(u64, *a, *b, order.session);
	expect_same(u32, *a, *b, order.timeline);
	expect_same(u64, *a, *b, order.value);
	expect_same(int, *a, *b, is_tainted);
}

static void expect_same_chunks(const struct chunk_ref *got, uint32_t n)
{
	cr_assert(eq(u32, n, 2));
	for (uint32_t i = 0; i < n; i++) {
		expect_same(u32, got[i], chunks[i], chunk);
		expect_same(u32, got[i], chunks[i], index);
		expect_same(u64, got[i], chunks[i], size);
		expect_same(int, got[i], chunks[i], is_writable);
		expect_same_device(&got[i].device, &chunks[i].device);
		expect_same(int, got[i], chunks[i], has_handle);
		cr_expect(zero(int, memcmp(got[i].handle, chunks[i].handle,
					   MESSAGE_HANDLE_SIZE)));
	}
}

/* --- round trips -----------------------------------------------------------
 */

/* Catches what the tests of single kinds do not look at. */
Test(message, everything_decoded_encodes_to_the_same_bytes)
{
	for (uint16_t kind = 1; kind > 0; kind = next_kind(kind)) {
		struct request request = sample_request(kind);
		struct request got = pass_request(&request);
		struct bytes a = request_bytes(&request);
		struct bytes b = request_bytes(&got);

		cr_expect(eq(sz, a.size, b.size), "%u", kind);
		cr_expect(zero(int, memcmp(a.data, b.data, a.size)), "%u",
			  kind);
		free(a.data);
		free(b.data);
		request_deinit(&got);
		cr_expect(zero(ptr, got.mem));
		request_deinit(&got);
	}
	for (uint16_t kind = 1; kind > 0; kind = next_kind(kind)) {
		struct reply reply = sample_reply(kind);
		struct reply got = pass_reply(&reply);
		struct bytes a = reply_bytes(&reply), b = reply_bytes(&got);

		cr_expect(eq(sz, a.size, b.size), "%u", kind);
		cr_expect(zero(int, memcmp(a.data, b.data, a.size)), "%u",
			  kind);
		cr_expect(eq(str, (char *)got.sentence, ""));
		free(a.data);
		free(b.data);
		reply_deinit(&got);
		reply_deinit(&got);
	}
}

Test(message, a_hello_request_arrives)
{
	struct request sent = sample_request(MESSAGE_HELLO);
	struct request got = pass_request(&sent);

	expect_same(u32, got.hello, sent.hello, major);
	expect_same(u32, got.hello, sent.hello, minor);
	cr_expect(got.hello.is_reconnect);
	expect_same(u64, got.hello, sent.hello, session);
	expect_same(u64, got.hello, sent.hello, budget);
	cr_expect(zero(int,
		       memcmp(got.hello.token, sent.hello.token, TOKEN_SIZE)));
	request_deinit(&got);
}

Test(message, a_challenge_and_a_cursor_arrive)
{
	struct request sent = sample_request(MESSAGE_CHALLENGE);
	struct request got = pass_request(&sent);

	expect_same(u64, got, sent, challenge.nonce);
	sent = sample_request(MESSAGE_CLIENTS);
	got = pass_request(&sent);
	expect_same(u64, got, sent, clients.cursor);
	sent = sample_request(MESSAGE_TICKETS);
	got = pass_request(&sent);
	expect_same(u64, got, sent, tickets.cursor);
	sent = sample_request(MESSAGE_REVOKE);
	got = pass_request(&sent);
	expect_same(u64, got, sent, revoke.ticket);
}

Test(message, a_status_request_arrives_and_resets_nothing_by_itself)
{
	struct request sent = sample_request(MESSAGE_STATUS);
	struct request got = pass_request(&sent);

	cr_expect(got.status.resets);
	sent.status.resets = false;
	got = pass_request(&sent);
	cr_expect(not(got.status.resets));
}

Test(message, an_alloc_request_arrives)
{
	struct request sent = sample_request(MESSAGE_ALLOC);
	struct request got = pass_request(&sent);

	expect_same(u32, got.alloc, sent.alloc, access.gid);
	expect_same(u32, got.alloc, sent.alloc, access.mode);
	expect_same(u64, got.alloc, sent.alloc, bundle);
	expect_same(int, got.alloc, sent.alloc, timeout_ms);
	expect_same_device(&got.alloc.device, &gpu);
	cr_assert(eq(u32, got.alloc.n_items, 3));
	for (int i = 0; i < 3; i++) {
		const struct alloc_item *item = &got.alloc.items[i];

		expect_same_type(&item->type, &alloc_items[i].type);
		expect_same(int, *item, alloc_items[i], is_view);
		expect_same_ref(item->base, alloc_items[i].base);
		expect_same(u64, *item, alloc_items[i], base_offset);
		expect_same_text(*item, alloc_items[i], name);
	}
	request_deinit(&got);
}

Test(message, a_publish_request_arrives)
{
	struct request sent = sample_request(MESSAGE_PUBLISH);
	struct request got = pass_request(&sent);

	cr_assert(eq(u32, got.publish.n_items, 2));
	for (int i = 0; i < 2; i++) {
		const struct publish_item *item = &got.publish.items[i];

		expect_same_ref(item->ref, publish_items[i].ref);
		expect_same_text(*item, publish_items[i], name);
		expect_same(u32, *item, publish_items[i], flags);
		expect_same(u64, *item, publish_items[i], ttl_ms);
		expect_same(u32, *item, publish_items[i], timeline);
		expect_same(u64, *item, publish_items[i], value);
	}
	request_deinit(&got);
}

Test(message, requests_by_name_arrive)
{
	struct request sent = sample_request(MESSAGE_GET);
	struct request got = pass_request(&sent);

	expect_same(int, got.get, sent.get, timeout_ms);
	expect_same(int, got.get, sent.get, is_trust_set);
	expect_same(u32, got.get, sent.get, trusted_uid);
	expect_same(u64, got.get, sent.get, newer_than);
	cr_assert(eq(u32, got.get.n_names, 3));
	for (int i = 0; i < 3; i++)
		expect_same_text(got.get, sent.get, names[i]);
	request_deinit(&got);

	sent = sample_request(MESSAGE_REMOVE);
	sent.remove.names = (const char *[]){"llama/", "b", "c/d/"};
	got = pass_request(&sent);
	cr_assert(eq(u32, got.remove.n_names, 3));
	for (int i = 0; i < 3; i++)
		expect_same_text(got.remove, sent.remove, names[i]);
	request_deinit(&got);

	sent = sample_request(MESSAGE_WHO);
	sent.who.name = "b";
	got = pass_request(&sent);
	cr_expect(eq(str, (char *)got.who.name, "b"));
	expect_same(u64, got.who, sent.who, cursor);
	request_deinit(&got);
}

Test(message, requests_by_ref_arrive)
{
	struct request sent = sample_request(MESSAGE_RELEASE);
	struct request got = pass_request(&sent);

	cr_assert(eq(u32, got.release.n_items, 2));
	for (int i = 0; i < 2; i++) {
		expect_same_ref(got.release.items[i].ref, release_items[i].ref);
		expect_same(u32, got.release.items[i], release_items[i],
			    n_holds);
	}
	request_deinit(&got);

	sent = sample_request(MESSAGE_TICKET);
	got = pass_request(&sent);
	expect_same_ref(got.ticket.ref, sent.ticket.ref);
	expect_same(u32, got.ticket, sent.ticket, n_uses);
	expect_same(u64, got.ticket, sent.ticket, ttl_ms);

	sent = sample_request(MESSAGE_WHO);
	got = pass_request(&sent);
	expect_same_ref(got.who.ref, sent.who.ref);
	cr_expect(eq(str, (char *)got.who.name, ""));
	request_deinit(&got);
}

Test(message, redeem_chunk_and_list_requests_arrive)
{
	struct request sent = sample_request(MESSAGE_REDEEM);
	struct request got = pass_request(&sent);

	cr_assert(eq(u32, got.redeem.n_tickets, 2));
	cr_expect(zero(int,
		       memcmp(got.redeem.tickets, tickets, sizeof(tickets))));
	request_deinit(&got);

	sent = sample_request(MESSAGE_CHUNK);
	got = pass_request(&sent);
	cr_assert(eq(u32, got.chunk.n_chunks, 2));
	cr_expect(zero(int,
		       memcmp(got.chunk.chunks, chunk_ids, sizeof(chunk_ids))));
	request_deinit(&got);

	sent = sample_request(MESSAGE_LIST);
	got = pass_request(&sent);
	expect_same_text(got.list, sent.list, prefix);
	expect_same(u32, got.list, sent.list, filter);
	expect_same(u64, got.list, sent.list, cursor);
	request_deinit(&got);
}

Test(message, bundle_requests_arrive)
{
	struct request sent = sample_request(MESSAGE_BUNDLE_BEGIN);
	struct request got = pass_request(&sent);

	expect_same_text(got.bundle_begin, sent.bundle_begin, name);
	expect_same(u32, got.bundle_begin, sent.bundle_begin, access.gid);
	expect_same(u32, got.bundle_begin, sent.bundle_begin, access.mode);
	expect_same(u64, got.bundle_begin, sent.bundle_begin, size_hint);
	expect_same(u32, got.bundle_begin, sent.bundle_begin, flags);
	expect_same(u64, got.bundle_begin, sent.bundle_begin, ttl_ms);
	expect_same_device(&got.bundle_begin.device, &gpu);
	request_deinit(&got);

	sent = sample_request(MESSAGE_BUNDLE_ABORT);
	got = pass_request(&sent);
	expect_same(u64, got, sent, bundle_end.bundle);

	sent = sample_request(MESSAGE_BUNDLE_GET);
	got = pass_request(&sent);
	expect_same_text(got.bundle_get, sent.bundle_get, name);
	expect_same(int, got.bundle_get, sent.bundle_get, timeout_ms);
	expect_same(int, got.bundle_get, sent.bundle_get, is_trust_set);
	expect_same(u32, got.bundle_get, sent.bundle_get, trusted_uid);
	expect_same(u64, got.bundle_get, sent.bundle_get, newer_than);
	request_deinit(&got);
}

Test(message, whose_timelines_arrives)
{
	struct request sent = sample_request(MESSAGE_TIMELINES);
	struct request got = pass_request(&sent);
	struct reply reply = sample_reply(MESSAGE_TIMELINES);

	expect_same(u64, got, sent, timelines.session);
	expect_same_ref(got.timelines.ref, sent.timelines.ref);
	cr_expect(got.timelines.wants_writable);
	sent.timelines = (struct timelines_request){0};
	got = pass_request(&sent);
	cr_expect(zero(u64, got.timelines.session));
	reply = pass_reply(&reply);
	cr_expect(eq(u64, reply.timelines.session, UINT64_MAX));
}

Test(message, memory_to_share_arrives)
{
	struct request request = sample_request(MESSAGE_SHARE);
	struct request got = pass_request(&request);

	expect_same_device(&got.share.device, &gpu);
	expect_same(u32, got, request, share.access.gid);
	expect_same(u32, got, request, share.access.mode);
	expect_same(u64, got, request, share.size);
	cr_expect(got.share.has_handle);
	cr_expect(zero(int, memcmp(got.share.handle, request.share.handle,
				   MESSAGE_HANDLE_SIZE)));
	cr_assert(eq(u32, got.share.n_items, 3));
	for (uint32_t i = 0; i < 3; i++) {
		expect_same_type(&got.share.items[i].type,
				 &share_items[i].type);
		expect_same(u64, got, request, share.items[i].offset);
	}
	request_deinit(&got);
	request.share.has_handle = false;
	got = pass_request(&request);
	cr_expect(not(got.share.has_handle));
	request_deinit(&got);
}

Test(message, what_is_to_be_unshared_arrives)
{
	struct request request = sample_request(MESSAGE_UNSHARE);
	struct request got = pass_request(&request);

	expect_same_ref(got.unshare.ref, request.unshare.ref);
	expect_same(int, got, request, unshare.timeout_ms);
	request_deinit(&got);
}

Test(message, both_hello_replies_arrive)
{
	struct reply sent = sample_reply(MESSAGE_HELLO);
	struct reply got = pass_reply(&sent);

	cr_expect(not(got.hello.is_challenge));
	expect_same(u64, got.hello, sent.hello, session);
	expect_same(u32, got.hello, sent.hello, n_slots);
	cr_expect(zero(int,
		       memcmp(got.hello.token, sent.hello.token, TOKEN_SIZE)));
	sent.hello = (struct hello_reply){.is_challenge = true, .nonce = 5};
	got = pass_reply(&sent);
	cr_expect(got.hello.is_challenge);
	cr_expect(eq(u64, got.hello.nonce, 5));
}

Test(message, places_arrive)
{
	struct reply sent = sample_reply(MESSAGE_GET);
	struct reply got = pass_reply(&sent);

	cr_assert(eq(u32, got.places.n_places, 4));
	for (int i = 0; i < 4; i++)
		expect_same_place(&got.places.places[i], &places[i]);
	expect_same_chunks(got.places.chunks, got.places.n_chunks);
	reply_deinit(&got);
}

Test(message, short_replies_arrive)
{
	struct reply sent = sample_reply(MESSAGE_PUBLISH);
	struct reply got = pass_reply(&sent);

	cr_assert(eq(u32, got.versions.n_versions, 3));
	cr_expect(zero(int, memcmp(got.versions.versions, versions,
				   sizeof(versions))));
	reply_deinit(&got);

	sent = sample_reply(MESSAGE_TICKET);
	got = pass_reply(&sent);
	cr_expect(
		zero(int, memcmp(got.ticket.ticket, tickets[0], TICKET_SIZE)));

	sent = sample_reply(MESSAGE_BUNDLE_COMMIT);
	got = pass_reply(&sent);
	expect_same(u64, got.bundle, sent.bundle, bundle);
	expect_same(u64, got.bundle, sent.bundle, version);

	sent = sample_reply(MESSAGE_CHUNK);
	got = pass_reply(&sent);
	expect_same_chunks(got.chunks.chunks, got.chunks.n_chunks);
	reply_deinit(&got);
}

Test(message, a_bundle_get_reply_arrives)
{
	struct reply sent = sample_reply(MESSAGE_BUNDLE_GET);
	struct reply got = pass_reply(&sent);

	expect_same(u64, got.bundle_get, sent.bundle_get, bundle);
	expect_same(u64, got.bundle_get, sent.bundle_get, version);
	expect_same(u32, got.bundle_get, sent.bundle_get, n_members);
	expect_same(u64, got.bundle_get, sent.bundle_get, manifest_size);
	expect_same_chunks(got.bundle_get.chunks, got.bundle_get.n_chunks);
	reply_deinit(&got);
}

Test(message, a_list_arrives)
{
	struct reply sent = sample_reply(MESSAGE_LIST);
	struct reply got = pass_reply(&sent);

	cr_assert(eq(u32, got.list.n_items, 3));
	for (int i = 0; i < 3; i++) {
		const struct list_item *item = &got.list.items[i];

		expect_same_place(&item->place, &list_items[i].place);
		expect_same(u32, *item, list_items[i], access.uid);
		expect_same(u32, *item, list_items[i], access.gid);
		expect_same(u32, *item, list_items[i], access.mode);
		expect_same(u32, *item, list_items[i], state);
		expect_same(u64, *item, list_items[i], age_ms);
		expect_same(u64, *item, list_items[i], ttl_left_ms);
		expect_same(u32, *item, list_items[i], n_holders);
		expect_same(u32, *item, list_items[i], flags);
		expect_same(u64, *item, list_items[i], bundle);
		expect_same_device(&item->device, &list_items[i].device);
		expect_same(u32, *item, list_items[i], shared);
		expect_same(u64, *item, list_items[i], block);
		expect_same(u64, *item, list_items[i], block_bytes);
		expect_same(u32, *item, list_items[i], block_slots);
		expect_same(u32, *item, list_items[i], payer_uid);
		expect_same(u32, *item, list_items[i], maker_pid);
		expect_same(u32, *item, list_items[i], n_tickets);
		expect_same(int, *item, list_items[i], is_collective);
		expect_same(u32, *item, list_items[i], bundle_name_size);
	}
	expect_same(u64, got.list, sent.list, next_cursor);
	reply_deinit(&got);
}

Test(message, holders_arrive)
{
	struct reply sent = sample_reply(MESSAGE_WHO);
	struct reply got = pass_reply(&sent);

	expect_same_place(&got.who.place, &sent.who.place);
	expect_same(u32, got.who, sent.who, state);
	expect_same(u32, got.who, sent.who, n_tickets);
	expect_same(u64, got.who, sent.who, next_cursor);
	cr_assert(eq(u32, got.who.n_holders, 2));
	for (int i = 0; i < 2; i++) {
		expect_same(u64, got.who.holders[i], holders[i], session);
		expect_same(u32, got.who.holders[i], holders[i], pid);
		expect_same(u32, got.who.holders[i], holders[i], uid);
		expect_same_text(got.who.holders[i], holders[i], command);
		expect_same(i64, got.who.holders[i], holders[i], holds);
		expect_same(int, got.who.holders[i], holders[i], is_connected);
		expect_same(int, got.who.holders[i], holders[i], is_writer);
	}
	reply_deinit(&got);
}

Test(message, clients_arrive)
{
	struct reply sent = sample_reply(MESSAGE_CLIENTS);
	struct reply got = pass_reply(&sent);

	cr_assert(eq(u32, got.clients.n_items, 2));
	for (int i = 0; i < 2; i++) {
		const struct client_item *item = &got.clients.items[i];

		expect_same(u64, *item, clients[i], session);
		expect_same(u32, *item, clients[i], pid);
		expect_same(u32, *item, clients[i], uid);
		expect_same_text(*item, clients[i], command);
		expect_same(int, *item, clients[i], is_connected);
		expect_same(u64, *item, clients[i], n_slots);
		expect_same(u64, *item, clients[i], n_bytes);
		expect_same(u64, *item, clients[i], n_requests);
		expect_same(u64, *item, clients[i], age_ms);
		expect_same(u32, *item, clients[i], n_waiting);
	}
	expect_same(u64, got.clients, sent.clients, next_cursor);
	reply_deinit(&got);
}

Test(message, tickets_that_are_out_arrive)
{
	struct reply sent = sample_reply(MESSAGE_TICKETS);
	struct reply got = pass_reply(&sent);

	cr_assert(eq(u32, got.tickets.n_items, 2));
	for (int i = 0; i < 2; i++) {
		const struct ticket_item *item = &got.tickets.items[i];

		expect_same(u64, *item, ticket_items[i], id);
		expect_same_ref(item->ref, ticket_items[i].ref);
		expect_same_text(*item, ticket_items[i], name);
		expect_same(u64, *item, ticket_items[i], block_bytes);
		expect_same(u32, *item, ticket_items[i], uid);
		expect_same(u32, *item, ticket_items[i], pid);
		expect_same(u32, *item, ticket_items[i], uses_left);
		expect_same(u64, *item, ticket_items[i], age_ms);
		expect_same(u64, *item, ticket_items[i], ttl_left_ms);
	}
	expect_same(u64, got.tickets, sent.tickets, next_cursor);
	reply_deinit(&got);
}

Test(message, status_arrives)
{
	struct reply sent = sample_reply(MESSAGE_STATUS);
	struct reply got = pass_reply(&sent);

	expect_same_text(got.status, sent.status, version);
	expect_same_text(got.status, sent.status, note);
	cr_assert(eq(u32, got.status.n_values, 2));
	for (int i = 0; i < 2; i++) {
		expect_same_text(got.status, sent.status, values[i].name);
		expect_same(u64, got.status, sent.status, values[i].value);
	}
	reply_deinit(&got);
}

Test(message, a_refusal_of_any_kind_brings_its_sentence)
{
	for (uint16_t kind = 1; kind <= MESSAGE_MAX; kind++) {
		struct reply sent = {.kind = kind,
				     .code = -ENOENT,
				     .sentence = "no such tensor"};
		struct reply got = pass_reply(&sent);

		cr_expect(eq(str, (char *)got.sentence, "no such tensor"));
		reply_deinit(&got);
	}
}

Test(message, prefixes_arrive)
{
	struct request sent_request = sample_request(MESSAGE_PREFIXES);
	struct request got_request = pass_request(&sent_request);
	struct reply sent = sample_reply(MESSAGE_PREFIXES);
	struct reply got = pass_reply(&sent);

	expect_same(u64, got_request, sent_request, prefixes.cursor);
	cr_assert(eq(u32, got.prefixes.n_items, 2));
	for (int i = 0; i < 2; i++) {
		const struct prefix_item *item = &got.prefixes.items[i];

		expect_same_text(*item, prefixes[i], name);
		expect_same(u32, *item, prefixes[i], uid);
		expect_same(u32, *item, prefixes[i], n_names);
		expect_same(u32, *item, prefixes[i], n_bundles);
		expect_same(int, *item, prefixes[i], is_configured);
		expect_same(u64, *item, prefixes[i], left_ms);
	}
	expect_same(u64, got.prefixes, sent.prefixes, next_cursor);
	request_deinit(&got_request);
	reply_deinit(&got);
}

Test(message, empty_pages_are_fine)
{
	struct reply sent = {.kind = MESSAGE_LIST};
	struct reply got = pass_reply(&sent);

	cr_expect(zero(u32, got.list.n_items));
	reply_deinit(&got);
	sent.kind = MESSAGE_CLIENTS;
	got = pass_reply(&sent);
	cr_expect(zero(u32, got.clients.n_items));
	reply_deinit(&got);
}

Test(message, mode_0_means_0600)
{
	struct request sent = sample_request(MESSAGE_ALLOC);
	struct request got;

	sent.alloc.access.mode = 0;
	got = pass_request(&sent);
	cr_expect(eq(u32, got.alloc.access.mode, 0600));
	request_deinit(&got);
}

Test(message, a_full_batch_of_the_largest_places_fits_a_frame)
{
	struct tensor_place *many = calloc(MESSAGE_MAX_ITEMS, sizeof(*many));
	struct chunk_ref refs[FRAME_MAX_FDS];
	struct reply got, sent = {.kind = MESSAGE_ALLOC};

	for (int i = 0; i < FRAME_MAX_FDS; i++)
		refs[i] = (struct chunk_ref){UINT32_MAX, 1023, INT64_MAX, 1,
					     gpu,        true, {255}};
	for (int i = 0; i < MESSAGE_MAX_ITEMS; i++) {
		struct tensor_place *place = &many[i];

		place->ref = (struct slot_ref){UINT32_MAX, UINT64_MAX};
		place->chunk = UINT32_MAX;
		place->offset = place->size = UINT64_C(1) << 62;
		place->version = UINT64_MAX;
		place->order = places[3].order;
		place->is_tainted = true;
		place->type.dtype = DTYPE_U8;
		place->type.n_dims = TENSOR_MAX_DIMS;
		/* One size of 2^61 and strides of 2^62 that are not used. */
		for (int k = 0; k < TENSOR_MAX_DIMS; k++) {
			place->type.shape[k] = 1;
			place->type.strides[k] = INT64_C(1) << 62;
		}
		place->type.shape[0] = INT64_C(1) << 61;
		place->type.strides[0] = 2;
	}
	sent.places = (struct places_reply){MESSAGE_MAX_ITEMS, many,
					    FRAME_MAX_FDS, refs};
	got = pass_reply(&sent);
	expect_same_place(&got.places.places[255],
			  &(struct tensor_place){
				  .ref = many[255].ref,
				  .chunk = UINT32_MAX,
				  .offset = many[255].offset,
				  .size = many[255].size,
				  .version = UINT64_MAX,
				  .type = many[255].type,
				  .name = "",
				  .order = places[3].order,
				  .is_tainted = true,
			  });
	reply_deinit(&got);
	free(many);
}

Test(message, a_manifest_of_many_places_arrives)
{
	struct places_reply sent = {.n_places = 3000};
	struct tensor_place got[7];
	struct manifest *manifest;
	struct error err = ERROR_NULL;
	char(*text)[32] = calloc(sent.n_places, sizeof(*text));
	struct bytes bytes;
	uint32_t n = 0;
	int r;

	sent.places = calloc(sent.n_places, sizeof(*sent.places));
	for (uint32_t i = 0; i < sent.n_places; i++) {
		snprintf(text[i], sizeof(text[i]), "model/layer.%u", i);
		sent.places[i] = places[i % 4];
		sent.places[i].ref.slot = i + 1;
		sent.places[i].name = text[i];
	}
	cr_assert(zero(int,
		       places_encode(&sent, &bytes.data, &bytes.size, &err)));
	cr_assert(gt(sz, bytes.size, FRAME_MAX_SIZE));
	cr_assert(zero(int,
		       manifest_open(bytes.data, bytes.size, &manifest, &err)),
		  "%s", err.msg);
	cr_assert(eq(u32, manifest_n_places(manifest), sent.n_places));
	while ((r = manifest_read(manifest, got, 7, &err)) > 0)
		for (int i = 0; i < r; i++)
			expect_same_place(&got[i], &sent.places[n++]);
	cr_assert(zero(int, r), "%s", err.msg);
	cr_assert(eq(u32, n, sent.n_places));
	manifest_close(manifest);
	cr_assert(eq(int,
		     manifest_open(bytes.data, bytes.size - 1, &manifest, &err),
		     -EPROTO));
	free(bytes.data);
	free(sent.places);
	free(text);
}

Test(message, chunks_put_behind_a_reply_are_added_to_it)
{
	struct reply got, sent = sample_reply(MESSAGE_GET);
	struct bytes body, more;
	uint8_t *all;

	sent.places.n_chunks = 1;
	body = reply_bytes(&sent);
	cr_assert(zero(int, chunk_refs_encode(MESSAGE_GET, &chunks[1], 1,
					      &more.data, &more.size, NULL)));
	all = malloc(body.size + more.size);
	memcpy(all, body.data, body.size);
	memcpy(all + body.size, more.data, more.size);
	cr_assert(zero(int, reply_decode(MESSAGE_GET, 0, all,
					 body.size + more.size, &got, NULL)));
	cr_assert(eq(u32, got.places.n_places, 4));
	expect_same_chunks(got.places.chunks, got.places.n_chunks);
	reply_deinit(&got);
	free(body.data);

	sent = sample_reply(MESSAGE_BUNDLE_GET);
	sent.bundle_get.n_chunks = 1;
	body = reply_bytes(&sent);
	all = realloc(all, body.size + more.size);
	memcpy(all, body.data, body.size);
	memcpy(all + body.size, more.data, more.size);
	cr_assert(zero(int, reply_decode(MESSAGE_BUNDLE_GET, 0, all,
					 body.size + more.size, &got, NULL)));
	expect_same_chunks(got.bundle_get.chunks, got.bundle_get.n_chunks);
	reply_deinit(&got);
	free(body.data);
	free(more.data);
	free(all);
}

/* --- refusals ----------------------------------------------------------------
 */

Test(message, unknown_kinds_are_refused)
{
	struct request request;
	struct reply reply;

	cr_expect(eq(int, request_decode(0, NULL, 0, &request, NULL), -EPROTO));
	cr_expect(eq(int,
		     request_decode(MESSAGE_MAX + 1, NULL, 0, &request, NULL),
		     -EPROTO));
	cr_expect(eq(int, reply_decode(UINT16_MAX, 0, NULL, 0, &reply, NULL),
		     -EPROTO));
	cr_expect(eq(int, reply_decode(MESSAGE_PING, 1, NULL, 0, &reply, NULL),
		     -EPROTO));
	cr_expect(eq(str, (char *)message_kind_name(MESSAGE_STATUS), "status"));
	cr_expect(eq(str, (char *)message_kind_name(0), "?"));
	cr_expect(eq(str, (char *)message_kind_name(MESSAGE_MAX + 1), "?"));
}

Test(message, bodies_larger_than_a_frame_are_refused_both_ways)
{
	static uint8_t body[FRAME_MAX_BODY + 1];
	static char name[NAME_MAX_SIZE + 1];
	const char *many[MESSAGE_MAX_ITEMS];
	struct request request = {.kind = MESSAGE_GET};
	struct error err = ERROR_NULL;
	struct bytes bytes;

	cr_expect(eq(int,
		     request_decode(MESSAGE_PING, body, sizeof(body), &request,
				    &err),
		     -EMSGSIZE));
	memset(name, 'a', NAME_MAX_SIZE);
	for (int i = 0; i < MESSAGE_MAX_ITEMS; i++)
		many[i] = name;
	request.get = (struct get_request){.n_names = MESSAGE_MAX_ITEMS,
					   .names = many};
	cr_expect(eq(int,
		     request_encode(&request, &bytes.data, &bytes.size, &err),
		     -EMSGSIZE));
	cr_expect(ne(str, err.msg, ""));
}

Test(message, no_items_and_too_many_are_refused)
{
	struct release_item items[MESSAGE_MAX_ITEMS + 1];
	struct request request = {.kind = MESSAGE_RELEASE};

	for (int i = 0; i <= MESSAGE_MAX_ITEMS; i++)
		items[i] = release_items[0];
	request.release =
		(struct release_request){MESSAGE_MAX_ITEMS + 1, items};
	cr_expect(eq(int, refusal(&request), -E2BIG));
	request.release.n_items = 0;
	cr_expect(eq(int, refusal(&request), -EINVAL));
	request = sample_request(MESSAGE_GET);
	request.get.n_names = 0;
	cr_expect(eq(int, refusal(&request), -EINVAL));
}

/* A frame full of empty items would take much memory before it is counted. */
Test(message, a_flood_of_empty_items_is_refused)
{
	static uint8_t body[FRAME_MAX_BODY];
	struct request request;
	struct error err = ERROR_NULL;

	for (size_t i = 0; i + 1 < sizeof(body); i += 2)
		body[i] = 1 << 3 | 2; /* field 1, length 0 */
	cr_expect(lt(int,
		     request_decode(MESSAGE_PUBLISH, body, sizeof(body),
				    &request, &err),
		     0));
	cr_expect(ne(str, err.msg, ""));
}

#define expect_refusal(kind, change, code)                                     \
	do {                                                                   \
		struct request request = sample_request(kind);                 \
		change;                                                        \
		cr_expect(eq(int, refusal(&request), code), #change);          \
	} while (0)

/* Change one item of a copy, so that the samples stay as they are. */
#define expect_item_refusal(kind, list, change, code)                          \
	do {                                                                   \
		struct request request = sample_request(kind);                 \
		__typeof__(*request.list.items) item = request.list.items[0];  \
		request.list.items = &item;                                    \
		request.list.n_items = 1;                                      \
		change;                                                        \
		cr_expect(eq(int, refusal(&request), code), #change);          \
	} while (0)

Test(message, wrong_values_in_requests_are_refused)
{
	const char *bundle_name[] = {"llama/"};

	expect_refusal(MESSAGE_HELLO, request.hello.session = 0, -EINVAL);
	expect_refusal(MESSAGE_ALLOC, request.alloc.access.mode = 0700,
		       -EINVAL);
	expect_refusal(MESSAGE_ALLOC, request.alloc.access.mode = 0200,
		       -EINVAL);
	expect_refusal(MESSAGE_ALLOC, request.alloc.access.mode = 01600,
		       -EINVAL);
	expect_refusal(MESSAGE_ALLOC, request.alloc.timeout_ms = -2, -EINVAL);
	/* named, but not in a bundle */
	expect_refusal(MESSAGE_ALLOC, request.alloc.bundle = 0, -EINVAL);
	expect_refusal(MESSAGE_GET, request.get.timeout_ms = INT32_MIN,
		       -EINVAL);
	expect_refusal(
		MESSAGE_GET,
		(request.get.names = bundle_name, request.get.n_names = 1),
		-EINVAL);
	expect_refusal(MESSAGE_TICKET, request.ticket.n_uses = 0, -EINVAL);
	expect_refusal(MESSAGE_TICKET, request.ticket.ttl_ms = 0, -EINVAL);
	expect_refusal(MESSAGE_TICKET,
		       request.ticket.ttl_ms = MESSAGE_MAX_TTL_MS + 1, -EINVAL);
	expect_refusal(MESSAGE_TICKET, request.ticket.ref.slot = 0, -EINVAL);
	expect_refusal(MESSAGE_REDEEM, request.redeem.n_tickets = 0, -EINVAL);
	expect_refusal(MESSAGE_BUNDLE_BEGIN, request.bundle_begin.name = "x",
		       -EINVAL);
	expect_refusal(MESSAGE_BUNDLE_BEGIN,
		       request.bundle_begin.flags = PUBLISH_EVICTABLE, -EINVAL);
	expect_refusal(MESSAGE_BUNDLE_BEGIN,
		       request.bundle_begin.flags = PUBLISH_MUST_EXIST,
		       -EINVAL);
	expect_refusal(MESSAGE_BUNDLE_BEGIN,
		       request.bundle_begin.size_hint = UINT64_MAX, -EOVERFLOW);
	expect_refusal(MESSAGE_BUNDLE_COMMIT, request.bundle_end.bundle = 0,
		       -EINVAL);
	expect_refusal(MESSAGE_BUNDLE_GET, request.bundle_get.name = "",
		       -EINVAL);
	expect_refusal(MESSAGE_CHUNK,
		       request.chunk.chunks = ((uint32_t[]){1, 0}), -EINVAL);
	expect_refusal(MESSAGE_LIST, request.list.filter = 0, -EINVAL);
	expect_refusal(MESSAGE_LIST, request.list.filter = 5, -EINVAL);
	expect_refusal(MESSAGE_WHO, request.who.ref.generation = 0, -EINVAL);
	expect_refusal(MESSAGE_WHO, request.who.name = "a//b", -EINVAL);
	expect_refusal(MESSAGE_TIMELINES, request.timelines.ref.slot = 0,
		       -EINVAL);
}

Test(message, memory_that_cannot_be_shared_is_refused)
{
	expect_refusal(MESSAGE_SHARE,
		       request.share.device = (struct device_uuid){{0}},
		       -EINVAL);
	expect_refusal(MESSAGE_SHARE, request.share.size = 0, -EINVAL);
	expect_refusal(MESSAGE_SHARE, request.share.size = UINT64_MAX,
		       -EOVERFLOW);
	expect_refusal(MESSAGE_SHARE, request.share.n_items = 0, -EINVAL);
	expect_refusal(MESSAGE_SHARE, request.share.access.mode = 0700,
		       -EINVAL);
	expect_refusal(MESSAGE_UNSHARE, request.unshare.ref.slot = 0, -EINVAL);
	expect_refusal(MESSAGE_UNSHARE, request.unshare.timeout_ms = -2,
		       -EINVAL);
	expect_item_refusal(MESSAGE_SHARE, share, item.type.dtype = 0, -EINVAL);
	expect_item_refusal(MESSAGE_SHARE, share, item.offset = 7, -EINVAL);
	expect_item_refusal(MESSAGE_SHARE, share, item.offset = LONG_AGO - 22,
			    -ERANGE);
	expect_item_refusal(MESSAGE_SHARE, share, item.offset = UINT64_MAX - 1,
			    -ERANGE);
	expect_item_refusal(MESSAGE_SHARE, share, item.type.strides[0] = -1,
			    -EINVAL);
}

Test(message, a_handle_of_another_size_is_refused)
{
	/* device, handle of one byte, size 8, one item: a dtype */
	const uint8_t share[] = {
		1 << 3 | 2, 16, 1,          1, 1,          1,       1,
		1,          1,  1,          1, 1,          1,       1,
		1,          1,  1,          1, 4 << 3 | 2, 1,       9,
		5 << 3 | 0, 8,  6 << 3 | 2, 2, 1 << 3 | 0, DTYPE_U8};
	struct request request;
	struct error err = ERROR_NULL;

	cr_expect(eq(int,
		     request_decode(MESSAGE_SHARE, share, sizeof(share),
				    &request, &err),
		     -EINVAL));
	cr_expect(ne(ptr, strstr(err.msg, "handle"), NULL), "%s", err.msg);
}

Test(message, wrong_values_in_items_are_refused)
{
	expect_item_refusal(MESSAGE_PUBLISH, publish, item.flags = 16, -EINVAL);
	expect_item_refusal(MESSAGE_PUBLISH, publish,
			    item.flags = PUBLISH_MUST_EXIST, -EINVAL);
	expect_item_refusal(MESSAGE_PUBLISH, publish, item.ttl_ms = UINT64_MAX,
			    -EINVAL);
	expect_item_refusal(MESSAGE_PUBLISH, publish, item.name = "a\n",
			    -EINVAL);
	expect_item_refusal(MESSAGE_PUBLISH, publish, item.ref.slot = 0,
			    -EINVAL);
	expect_item_refusal(MESSAGE_PUBLISH, publish, item.timeline = 0,
			    -EINVAL);
	expect_item_refusal(MESSAGE_PUBLISH, publish,
			    item.timeline = MESSAGE_MAX_TIMELINES, -EINVAL);
	expect_item_refusal(MESSAGE_PUBLISH, publish, item.value = 0, -EINVAL);
	expect_item_refusal(MESSAGE_PUBLISH, publish, item.value = INT64_MAX,
			    -EINVAL);
	expect_item_refusal(MESSAGE_RELEASE, release, item.n_holds = 0,
			    -EINVAL);
	expect_item_refusal(MESSAGE_RELEASE, release,
			    item.n_holds = 1u + INT32_MAX, -EINVAL);
	expect_item_refusal(MESSAGE_ALLOC, alloc, item.type.dtype = 0, -EINVAL);
	expect_item_refusal(MESSAGE_ALLOC, alloc, item.type.shape[1] = -1,
			    -EINVAL);
	expect_item_refusal(MESSAGE_ALLOC, alloc,
			    item.type.shape[1] = INT64_MAX, -EOVERFLOW);
	expect_item_refusal(MESSAGE_ALLOC, alloc, item.type.strides[0] = 5,
			    -EINVAL);
	expect_item_refusal(MESSAGE_ALLOC, alloc, item.name = "", -EINVAL);
	expect_item_refusal(MESSAGE_ALLOC, alloc, item.is_view = true, -EINVAL);
	expect_item_refusal(
		MESSAGE_ALLOC, alloc,
		(item = alloc_items[1], item.base_offset = UINT64_MAX),
		-EOVERFLOW);
}

#define expect_reply_refusal(kind, change, code)                               \
	do {                                                                   \
		struct reply reply = sample_reply(kind);                       \
		change;                                                        \
		cr_expect(eq(int, reply_refusal(&reply), code), #change);      \
	} while (0)

/* As expect_item_refusal(), for one of several places. */
#define expect_place_refusal(change, code)                                     \
	do {                                                                   \
		struct tensor_place place = places[0];                         \
		struct reply reply = {.kind = MESSAGE_GET,                     \
				      .places = {1, &place, 0, NULL}};         \
		change;                                                        \
		cr_expect(eq(int, reply_refusal(&reply), code), #change);      \
	} while (0)

Test(message, wrong_values_in_replies_are_refused)
{
	static char note[MESSAGE_MAX_NOTE + 2];

	memset(note, 'a', sizeof(note) - 1);
	expect_reply_refusal(MESSAGE_HELLO, reply.hello.session = 0, -EPROTO);
	expect_reply_refusal(MESSAGE_HELLO, reply.hello.n_slots = 0, -EPROTO);
	expect_reply_refusal(MESSAGE_PUBLISH, reply.versions.n_versions = 0,
			     -EINVAL);
	expect_reply_refusal(MESSAGE_BUNDLE_BEGIN, reply.bundle.bundle = 0,
			     -EPROTO);
	expect_reply_refusal(MESSAGE_BUNDLE_GET, reply.bundle_get.n_members++,
			     -EPROTO);
	expect_reply_refusal(MESSAGE_BUNDLE_GET,
			     reply.bundle_get.manifest_size = UINT64_MAX,
			     -EPROTO);
	expect_reply_refusal(MESSAGE_WHO, reply.who.state = 4, -EPROTO);
	expect_reply_refusal(MESSAGE_LIST, reply.list.items[1].state = 4,
			     -EPROTO);
	expect_reply_refusal(MESSAGE_LIST,
			     reply.list.items[1].access.mode = 0111, -EINVAL);
	expect_reply_refusal(MESSAGE_LIST,
			     reply.list.items[1].shared = SHARE_MAX + 1,
			     -EPROTO);
	expect_reply_refusal(MESSAGE_LIST,
			     reply.list.items[1].bundle_name_size = 256,
			     -EPROTO);
	expect_reply_refusal(MESSAGE_TICKETS,
			     reply.tickets.items[1].ref.slot = 0, -EINVAL);
	expect_reply_refusal(MESSAGE_STATUS, reply.status.note = note,
			     -ENAMETOOLONG);
	expect_reply_refusal(MESSAGE_PING,
			     (reply.code = -EIO, reply.sentence = note),
			     -ENAMETOOLONG);
	expect_place_refusal(place.ref.slot = 0, -EINVAL);
	expect_place_refusal(place.chunk = 0, -EPROTO);
	expect_place_refusal(place.size = 23, -EPROTO);
	expect_place_refusal(place.offset = UINT64_MAX, -EOVERFLOW);
	expect_place_refusal(place.name = "a//", -EINVAL);
	expect_place_refusal(place.type.dtype = 99, -EINVAL);
	expect_place_refusal(place.order.timeline = MESSAGE_MAX_TIMELINES,
			     -EINVAL);
	expect_place_refusal(place.order.value = 0, -EPROTO);
	expect_place_refusal(place.order.value = INT64_MAX, -EINVAL);
	expect_reply_refusal(MESSAGE_TIMELINES, reply.timelines.session = 0,
			     -EPROTO);
}

/* Columns of another length than the others, which encoding never makes. */
Test(message, columns_that_do_not_fit_together_are_refused)
{
	/* place: {slot 1, generation 1, chunk 1, offset 0, size 1, version 0,
	 * dtype u8, 0 dimensions}; then one more column */
	const uint8_t start[] = {
		0x0a, 4, 1,        0,    0, 0,             /* slot */
		0x12, 8, 1,        0,    0, 0, 0, 0, 0, 0, /* generation */
		0x1a, 4, 1,        0,    0, 0,             /* chunk */
		0x22, 8, 0,        0,    0, 0, 0, 0, 0, 0, /* offset */
		0x2a, 8, 1,        0,    0, 0, 0, 0, 0, 0, /* size */
		0x32, 8, 0,        0,    0, 0, 0, 0, 0, 0, /* version */
		0x3a, 1, DTYPE_U8, 0x42, 1, 0,             /* dtype, n_dims */
	};
	static const struct {
		uint8_t bytes[10];
		uint8_t size;
		int code;
	} columns[] = {
		{{0x82, 1, 1, 1}, 4, 0},             /* tainted */
		{{0x82, 1, 1, 2}, 4, -EPROTO},       /* more than that */
		{{0x82, 1, 2, 0, 0}, 5, -EPROTO},    /* two of them */
		{{0x72, 4, 1, 0, 0, 0}, 6, -EPROTO}, /* timeline alone */
		{{0x72, 8, 1, 0, 0, 0, 0, 0, 0, 0}, 10, -EPROTO},
	};

	for (size_t i = 0; i < sizeof(columns) / sizeof(*columns); i++) {
		uint8_t body[2 + sizeof(start) + 10] = {0x0a};
		struct error err = ERROR_NULL;
		struct reply reply;
		int r;

		body[1] = (uint8_t)(sizeof(start) + columns[i].size);
		memcpy(body + 2, start, sizeof(start));
		memcpy(body + 2 + sizeof(start), columns[i].bytes,
		       columns[i].size);
		r = reply_decode(MESSAGE_GET, 0, body, 2u + body[1], &reply,
				 &err);
		cr_expect(eq(int, r, columns[i].code), "%zu: %s", i, err.msg);
		if (r == 0) {
			cr_expect(reply.places.places[0].is_tainted);
			reply_deinit(&reply);
		}
	}
}

/* Most tensors are on the host, and pay nothing for those that are not. */
Test(message, order_and_taint_take_bytes_only_where_there_are_some)
{
	struct tensor_place place = places[2];
	struct reply reply = {.kind = MESSAGE_GET,
			      .places = {1, &place, 0, NULL}};
	struct bytes plain = reply_bytes(&reply), more;

	place.is_tainted = true;
	more = reply_bytes(&reply);
	cr_expect(eq(sz, more.size, plain.size + 4));
	free(more.data);
	place.is_tainted = false;
	place.order = places[0].order;
	more = reply_bytes(&reply);
	cr_expect(eq(sz, more.size, plain.size + 2 + 8 + 2 + 4 + 2 + 8));
	free(more.data);
	free(plain.data);
}

Test(message, a_uuid_of_another_size_is_refused)
{
	/* name "a/", then the device */
	const uint8_t begin[] = {1 << 3 | 2, 2, 'a', '/', 7 << 3 | 2, 1, 9};
	struct request request;
	struct error err = ERROR_NULL;

	cr_expect(eq(int,
		     request_decode(MESSAGE_BUNDLE_BEGIN, begin, sizeof(begin),
				    &request, &err),
		     -EINVAL));
	cr_expect(ne(ptr, strstr(err.msg, "UUID"), NULL), "%s", err.msg);
}

Test(message, chunks_that_cannot_be_are_refused)
{
	static const struct chunk_ref bad[] = {
		{0, 1, 1, false, {{0}}, false, {0}},
		{1, MESSAGE_MAX_CHUNKS, 1, false, {{0}}, false, {0}},
		{1, 1, 0, false, {{0}}, false, {0}},
		{1, 1, UINT64_MAX, false, {{0}}, false, {0}},
		{1, 1, 1, false, {{0}}, true, {0}}, /* of the host */
	};
	struct chunk_ref many[FRAME_MAX_FDS + 1];
	struct reply reply = {.kind = MESSAGE_CHUNK};

	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		struct chunk_ref ref = bad[i];

		reply.chunks = (struct chunks_reply){1, &ref};
		cr_expect(eq(int, reply_refusal(&reply), -EPROTO), "%zu", i);
	}
	for (int i = 0; i <= FRAME_MAX_FDS; i++)
		many[i] = chunks[0];
	reply.chunks = (struct chunks_reply){FRAME_MAX_FDS + 1, many};
	cr_expect(eq(int, reply_refusal(&reply), -E2BIG));
}

/* C would take "a" for the name and never see the rest. */
Test(message, a_0_byte_inside_a_name_is_refused)
{
	const uint8_t body[] = {4 << 3 | 2, 3, 'a', 0, 'b'};
	struct request request;

	cr_expect(eq(
		int,
		request_decode(MESSAGE_GET, body, sizeof(body), &request, NULL),
		-EINVAL));
}

Test(message, fields_of_a_later_minor_version_are_ignored)
{
	const uint8_t body[] = {4 << 3 | 2, 1, 'a', 14 << 3 | 0, 7};
	struct request request;

	cr_assert(zero(int, request_decode(MESSAGE_GET, body, sizeof(body),
					   &request, NULL)));
	cr_expect(eq(u32, request.get.n_names, 1));
	request_deinit(&request);
	cr_expect(zero(int, request_decode(MESSAGE_PING, body, sizeof(body),
					   &request, NULL)));
	request_deinit(&request);
}

/* --- noise
 * -------------------------------------------------------------------- */

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
	uint8_t *copy = malloc(bytes.size);

	/* Exactly as large, so that ASan sees a read past the end. */
	for (int round = 0; round < 2000 && bytes.size > 0; round++) {
		size_t size = next_random(seed) % bytes.size + 1;
		uint32_t n = next_random(seed) % 4;

		memcpy(copy, bytes.data, bytes.size);
		while (n-- > 0)
			copy[next_random(seed) % bytes.size] =
				(uint8_t)next_random(seed);
		decode_and_drop(kind, is_reply, copy, bytes.size);
		decode_and_drop(kind, is_reply, copy + bytes.size - size, size);
	}
	free(copy);
	free(bytes.data);
}

Test(message, mutated_bodies_never_crash, .timeout = 60)
{
	uint32_t seed = 2463534242;

	for (uint16_t kind = 1; kind > 0; kind = next_kind(kind)) {
		struct request request = sample_request(kind);
		struct reply reply = sample_reply(kind);

		mutate_and_decode(kind, 0, request_bytes(&request), &seed);
		mutate_and_decode(kind, 1, reply_bytes(&reply), &seed);
	}
}
