/*
 * Tests bad input about tensors, names and publications, and bodies that cannot
 * be decoded.
 */
#include "proto/name.h"
#include "tests/integration/refusal.h"
#include "tests/lib/leaks.h"
#include <stdio.h>
#include <stdlib.h>

CHECKED_SUITE(refusal, refusal_setup, refusal_teardown, .timeout = 300);

/* --- tensors ------------------------------------------------------------- */

Test(refusal, of_types)
{
	struct alloc_item no_dtype = vector("", 1), wild_dtype = vector("", 1),
			  negative = vector("", -1), huge = vector("", 1),
			  gaps = vector("", 2), name = vector("test/x", 1),
			  wraps[4];
	const struct refusal all[] = {
		{"no dtype", alloc_of(&no_dtype, 1), -EINVAL, "dtype 0"},
		{"a wild dtype", alloc_of(&wild_dtype, 1), -EINVAL,
		 "dtype 4000000000"},
		{"a negative size", alloc_of(&negative, 1), -EINVAL,
		 "dimension 0 has the size -1"},
		{"a product over 2^64", alloc_of(&huge, 1), -EOVERFLOW, "2^62"},
		{"gaps", alloc_of(&gaps, 1), -EINVAL, "contiguous"},
		{"a name", alloc_of(&name, 1), -EINVAL, "members of bundles"},
		{"a sum over 2^64", alloc_of(wraps, 4), -EOVERFLOW, "2^64"},
	};

	no_dtype.type.dtype = 0;
	wild_dtype.type.dtype = 4000000000u;
	huge.type.n_dims = 3;
	huge.type.shape[0] = huge.type.shape[1] = INT64_C(1) << 32;
	huge.type.shape[2] = 1;
	gaps.type.strides[0] = 2;
	for (int i = 0; i < 4; i++)
		wraps[i] = vector("", INT64_C(1) << 62);
	CHECK(all);
}

Test(refusal, of_dimensions_and_strides_that_do_not_match)
{
	uint8_t item[64], body[128];
	size_t n;

	/* The item has dtype u8 and nine sizes. */
	n = put_varint(item, 1 << 3);
	n += put_varint(item + n, DTYPE_U8);
	n += put_field(item + n, 2, "\1\1\1\1\1\1\1\1\1", 9);
	n = put_field(body, 5, item, n);
	check_body(MESSAGE_ALLOC, body, n, -EINVAL, "9 dimensions");
	/* The item has one size and two strides. */
	n = put_varint(item, 1 << 3);
	n += put_varint(item + n, DTYPE_U8);
	n += put_field(item + n, 2, "\1", 1);
	n += put_field(item + n, 3, "\1\1", 2);
	n = put_field(body, 5, item, n);
	check_body(MESSAGE_ALLOC, body, n, -EINVAL, "specs[0]: ");
	check_body(MESSAGE_ALLOC, body, n, -EINVAL,
		   "2 strides for 1 dimensions");
}

static struct alloc_item view_of(const struct slot_ref *base, int64_t size,
				 uint64_t offset)
{
	struct alloc_item item = vector("", size);

	item.is_view = true;
	item.base = *base;
	item.base_offset = offset;
	return item;
}

Test(refusal, of_views)
{
	struct slot_ref wild = {UINT32_MAX, 1}, nothing = {0, 0};
	struct slot_ref later = {named.ref.slot, named.ref.generation + 1};
	struct alloc_item outside = view_of(&named.ref, 4096, 1),
			  behind = view_of(&named.ref, 0, 4097),
			  far = view_of(&named.ref, 1, UINT64_MAX),
			  far_too = view_of(&named.ref, 1, UINT64_C(1) << 61),
			  crooked = view_of(&named.ref, 1, 2),
			  backwards = view_of(&named.ref, 2, 64),
			  wide = view_of(&named.ref, 2, 0),
			  not_ours = view_of(&theirs.ref, 1, 0),
			  is_gone = view_of(&gone, 1, 0),
			  no_slot = view_of(&wild, 1, 0),
			  none = view_of(&nothing, 1, 0),
			  not_yet = view_of(&later, 1, 0),
			  of_member = view_of(&member, 1, 0),
			  as_member = view_of(&named.ref, 1, 0);
	const struct refusal all[] = {
		{"a view outside", alloc_of(&outside, 1), -ERANGE,
		 "4096 bytes at offset 1"},
		{"a view behind", alloc_of(&behind, 1), -ERANGE, "4097"},
		{"a view far away", alloc_of(&far, 1), -EOVERFLOW, "2^62"},
		{"a view far enough", alloc_of(&far_too, 1), -ERANGE,
		 "reach outside"},
		{"a crooked view", alloc_of(&crooked, 1), -EINVAL,
		 "offset 2 is not aligned to the 4 bytes of f32"},
		{"a view backwards", alloc_of(&backwards, 1), -EINVAL,
		 "stride -1"},
		{"a view with wide strides", alloc_of(&wide, 1), -EOVERFLOW,
		 "2^62"},
		{"a view of another's", alloc_of(&not_ours, 1), -EINVAL,
		 "not held by this session"},
		{"a view of what is gone", alloc_of(&is_gone, 1), -ESTALE,
		 "has no tensor of generation"},
		{"a view of no slot", alloc_of(&no_slot, 1), -ESTALE,
		 "4294967295"},
		{"a view of nothing", alloc_of(&none, 1), -EINVAL,
		 "is not a tensor"},
		{"a view of what comes later", alloc_of(&not_yet, 1), -ESTALE,
		 "generation"},
		{"a view of a member", alloc_of(&of_member, 1), -EINVAL,
		 "slice the tensor"},
		{"a member that views", member_of(staged, &as_member, 1),
		 -EINVAL, "a view of another member"},
	};

	crooked.type.dtype = DTYPE_F32;
	backwards.type.strides[0] = -1;
	wide.type.strides[0] = INT64_MAX;
	as_member.name = "test/s/view";
	CHECK(all);
}

Test(refusal, of_allocations)
{
	struct alloc_item one = vector("", 1),
			  in_bundle = vector("test/o/x", 1);
	struct refusal all[] = {
		{"a strange timeout", alloc_of(&one, 1), -EINVAL, "-2 ms"},
		{"a strange mode", alloc_of(&one, 1), -EINVAL, "07777"},
		{"no bundle", member_of(12345, &in_bundle, 1), -ENOENT,
		 "12345"},
		{"another's bundle", member_of(staged_by_other, &in_bundle, 1),
		 -ENOENT, "is not staging bundle"},
		{"nothing", alloc_of(&one, 0), -EINVAL, "no tensors"},
	};

	all[0].request.alloc.timeout_ms = -2;
	all[1].request.alloc.access.mode = 07777;
	CHECK(all);
}

/* Empty tensors and scalars are valid, so the broker accepts them. */
Test(refusal, is_not_for_empty_tensors_and_scalars)
{
	struct alloc_item items[] = {vector("", 0), vector("", 1),
				     vector("", 0)};
	struct request request = alloc_of(items, 3);

	items[1].type.n_dims = 0;
	items[2].type = (struct tensor_type){
		.dtype = DTYPE_C128, .n_dims = 2, .shape = {INT64_MAX, 0}};
	tensor_type_contiguous(&items[2].type);
	cr_assert(eq(int, wire_call(me, &request), -EOVERFLOW));
	items[2].type.shape[0] = 1 << 20;
	tensor_type_contiguous(&items[2].type);
	wire_must(me, wire_call(me, &request));
	cr_assert(zero(u64, me->reply.places.places[0].size));
	cr_assert(eq(u64, me->reply.places.places[1].size, 1));
	cr_assert(zero(u64, me->reply.places.places[2].size));
}

/* --- batches ------------------------------------------------------------- */

Test(refusal, of_batches_that_are_too_large)
{
	enum { N = MESSAGE_MAX_ITEMS + 1 };
	static struct alloc_item items[N];
	static struct publish_item publications[N];
	static struct release_item releases[N];
	static const char *names[N];
	static uint8_t ids[N][TICKET_SIZE];
	static uint32_t chunks[FRAME_MAX_FDS + 1];
	const struct refusal all[] = {
		{"alloc", alloc_of(items, N), -E2BIG, "257 tensors"},
		{"publish",
		 {.kind = MESSAGE_PUBLISH,
		  .publish = {.n_items = N, .items = publications}},
		 -E2BIG,
		 "257 tensors"},
		{"get",
		 {.kind = MESSAGE_GET, .get = {.n_names = N, .names = names}},
		 -E2BIG,
		 "257 names"},
		{"release",
		 {.kind = MESSAGE_RELEASE,
		  .release = {.n_items = N, .items = releases}},
		 -E2BIG,
		 "257 tensors"},
		{"remove",
		 {.kind = MESSAGE_REMOVE,
		  .remove = {.n_names = N, .names = names}},
		 -E2BIG,
		 "257 names"},
		{"redeem",
		 {.kind = MESSAGE_REDEEM,
		  .redeem = {.n_tickets = N, .tickets = ids}},
		 -E2BIG,
		 "257 tickets"},
		{"chunk",
		 {.kind = MESSAGE_CHUNK,
		  .chunk = {.n_chunks = FRAME_MAX_FDS + 1, .chunks = chunks}},
		 -E2BIG,
		 "33 chunks"},
	};

	for (int i = 0; i < N; i++) {
		items[i] = vector("", 1);
		publications[i] = (struct publish_item){.ref = loose.ref,
							.name = "test/x"};
		releases[i] = (struct release_item){loose.ref, 1};
		names[i] = "test/a";
	}
	for (int i = 0; i <= FRAME_MAX_FDS; i++)
		chunks[i] = named.chunk;
	CHECK(all);
}

/* --- names --------------------------------------------------------------- */

static char long_name[NAME_MAX_SIZE + 2];

static const struct {
	const char *name;
	int code;
	const char *says;
} bad_names[] = {
	{"/", -EINVAL, "component that is empty"},
	{"/a", -EINVAL, "component that is empty"},
	{"a//b", -EINVAL, "component that is empty"},
	{".", -EINVAL, "component that is empty, \".\""},
	{"a/..", -EINVAL, "component that is empty, \".\" or \"..\""},
	{"a/../b", -EINVAL, "component that is empty"},
	{"a/./b", -EINVAL, "component that is empty"},
	{"a\nb", -EINVAL, "control character or bad UTF-8 at byte 1"},
	{"a\x7f", -EINVAL, "control character or bad UTF-8"},
	{"a\xc2\x9b", -EINVAL, "control character or bad UTF-8"},
	{"a\xc3", -EINVAL, "control character or bad UTF-8"},
	{"a\xc3(", -EINVAL, "control character or bad UTF-8"},
	{"\xc0\xaf", -EINVAL, "control character or bad UTF-8"},
	{"\xed\xa0\x80", -EINVAL, "control character or bad UTF-8"},
	{"\xf5\x80\x80\x80", -EINVAL, "control character or bad UTF-8"},
	{"a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a", -EINVAL, "16 components"},
	{long_name, -ENAMETOOLONG, "255"},
};

static void check_name(const char *name, int code, const char *says)
{
	struct publish_item item = {.ref = loose.ref, .name = name};
	struct alloc_item inside = vector(name, 1);
	char bundle[NAME_MAX_SIZE + 3];
	const struct refusal all[] = {
		{"publish",
		 {.kind = MESSAGE_PUBLISH,
		  .publish = {.n_items = 1, .items = &item}},
		 code,
		 says},
		{"get",
		 {.kind = MESSAGE_GET, .get = {.n_names = 1, .names = &name}},
		 code,
		 says},
		{"remove",
		 {.kind = MESSAGE_REMOVE,
		  .remove = {.n_names = 1, .names = &name}},
		 code,
		 says},
		{"alloc", member_of(staged, &inside, 1), code, says},
		{"who",
		 {.kind = MESSAGE_WHO, .who = {.name = name}},
		 code,
		 says},
		{"begin",
		 {.kind = MESSAGE_BUNDLE_BEGIN,
		  .bundle_begin = {.name = bundle}},
		 code,
		 says},
		{"bundle_get",
		 {.kind = MESSAGE_BUNDLE_GET, .bundle_get = {.name = bundle}},
		 code,
		 says},
	};

	snprintf(bundle, sizeof(bundle), "%s/", name);
	CHECK(all);
}

Test(refusal, of_names)
{
	memset(long_name, 'x', NAME_MAX_SIZE + 1);
	for (size_t i = 0; i < sizeof(bad_names) / sizeof(*bad_names); i++)
		check_name(bad_names[i].name, bad_names[i].code,
			   bad_names[i].says);
}

Test(refusal, of_tensor_names_for_bundles_and_vice_versa)
{
	const char *empty = "", *bundle = "test/m/";
	struct publish_item item = {.ref = loose.ref, .name = bundle};
	const struct refusal all[] = {
		{"get of nothing",
		 {.kind = MESSAGE_GET, .get = {.n_names = 1, .names = &empty}},
		 -EINVAL,
		 "a name is empty"},
		{"get of a bundle",
		 {.kind = MESSAGE_GET, .get = {.n_names = 1, .names = &bundle}},
		 -EINVAL,
		 "test/m/"},
		{"publish as a bundle",
		 {.kind = MESSAGE_PUBLISH,
		  .publish = {.n_items = 1, .items = &item}},
		 -EINVAL,
		 "test/m/"},
		{"bundle without its slash",
		 {.kind = MESSAGE_BUNDLE_BEGIN,
		  .bundle_begin = {.name = "test/x"}},
		 -EINVAL,
		 "which ends in '/'"},
	};

	CHECK(all);
}

Test(refusal, of_a_name_with_a_zero_byte)
{
	uint8_t body[32];
	size_t n = put_field(body, 4, "test\0a", 6);

	check_body(MESSAGE_GET, body, n, -EINVAL, "0 byte");
}

/* --- publish ------------------------------------------------------------- */

Test(refusal, of_publications)
{
	struct slot_ref later = {loose.ref.slot, loose.ref.generation + 1};
	struct publish_item stale = {.ref = gone, .name = "test/x"},
			    early = {.ref = later, .name = "test/x"},
			    foreign = {.ref = theirs.ref, .name = "test/x"},
			    again = {.ref = named.ref, .name = "test/x"},
			    part = {.ref = member, .name = "test/x"},
			    taken = {.ref = loose.ref, .name = "test/a"},
			    inside = {.ref = loose.ref, .name = "test/m/y"},
			    lost = {.ref = loose.ref,
				    .name = "test/x",
				    .flags = PUBLISH_REPLACE |
					     PUBLISH_MUST_EXIST},
			    vain = {.ref = loose.ref,
				    .name = "test/x",
				    .flags = PUBLISH_MUST_EXIST},
			    flagged = {.ref = loose.ref,
				       .name = "test/x",
				       .flags = 0x80000000},
			    lasting = {.ref = loose.ref,
				       .name = "test/x",
				       .ttl_ms = UINT64_MAX},
			    duplicates[] = {
				    {.ref = loose.ref, .name = "test/x"},
				    {.ref = loose.ref, .name = "test/y"}};
	const struct refusal all[] = {
		{"a stale one", publish_of(&stale, 1), -ESTALE, "test/x"},
		{"a later one", publish_of(&early, 1), -ESTALE, "generation"},
		{"another's", publish_of(&foreign, 1), -EPERM,
		 "another session is writing"},
		{"a named one", publish_of(&again, 1), -EINVAL, "test/a"},
		{"a member", publish_of(&part, 1), -EINVAL, "with its bundle"},
		{"a taken name", publish_of(&taken, 1), -EEXIST, "test/a"},
		{"a bundle's name", publish_of(&inside, 1), -EEXIST, "test/m/"},
		{"a name to replace", publish_of(&lost, 1), -ENOENT,
		 "no such name"},
		{"flags that contradict", publish_of(&vain, 1), -EINVAL,
		 "must exist"},
		{"flags that are none", publish_of(&flagged, 1), -EINVAL,
		 "0x80000000"},
		{"a time that is too long", publish_of(&lasting, 1), -EINVAL,
		 "time to live"},
		{"duplicates", publish_of(duplicates, 2), -EINVAL, "twice"},
	};

	CHECK(all);
}

Test(refusal, of_a_name_that_is_twice_in_a_batch_leaves_both_unpublished)
{
	struct tensor_place second;
	struct publish_item items[] = {{.ref = loose.ref, .name = "test/x"},
				       {.name = "test/x"}};
	const struct refusal all[] = {
		{"duplicates", publish_of(items, 2), -EINVAL,
		 "the name is in the batch twice"},
	};

	wire_must(me, wire_alloc(me, 64, NULL, -1, &second));
	items[1].ref = second.ref;
	CHECK(all);
	wire_must(me, wire_publish(me, &loose.ref, "test/x", 0));
}

/* Opens a channel. The reply to `me` has its number and place. */
static void open_channel(enum channel_role role)
{
	struct request request = {
		.kind = MESSAGE_CHANNEL_OPEN,
		.channel_open = {.name = "test/channel",
				 .n_slots = 2,
				 .capacity = 64,
				 .access = {.gid = GID_DEFAULT},
				 .role = role,
				 .writes = role == CHANNEL_PRODUCER},
	};

	wire_must(me, wire_call(me, &request));
}

/* Returns the first buffer of a channel that `me` fills. */
static struct slot_ref open_buffer(void)
{
	struct request request = {.kind = MESSAGE_CHANNEL_BUFFER};

	open_channel(CHANNEL_PRODUCER);
	request.channel_buffer.channel = me->reply.channel.channel;
	request.channel_buffer.place = me->reply.channel.place;
	wire_must(me, wire_call(me, &request));
	return me->reply.places.places[0].ref;
}

/* A consumer that counted as ended would be cut at the next restart. */
Test(refusal, of_an_end_by_a_consumer)
{
	struct refusal end = {
		"a consumer",
		{.kind = MESSAGE_CHANNEL_CLOSE,
		 .channel_close = {.is_end = true}},
		-EINVAL,
		"only a producer can end its part",
	};

	open_channel(CHANNEL_CONSUMER);
	end.request.channel_close.channel = me->reply.channel.channel;
	end.request.channel_close.place = me->reply.channel.place;
	check_refusals(&end, 1);
}

/* The channel alone decides about the state of its buffers. */
Test(refusal, of_a_publication_of_a_buffer_of_a_channel)
{
	struct publish_item named_one = {.ref = open_buffer(),
					 .name = "test/x",
					 .flags = PUBLISH_EVICTABLE},
			    nameless = {.ref = named_one.ref, .name = ""};
	const struct refusal all[] = {
		{"a buffer", publish_of(&named_one, 1), -EINVAL,
		 "a buffer of a channel"},
		{"a buffer without a name", publish_of(&nameless, 1), -EINVAL,
		 "a buffer of a channel"},
	};

	CHECK(all);
}

/* --- the rest ------------------------------------------------------------ */

Test(refusal, of_queries)
{
	uint32_t unknown = 4000000000u, none = 0;
	char prefix[NAME_MAX_SIZE + 2] = "";
	const char *name = "test/none";
	struct slot_ref wild = {UINT32_MAX, UINT64_MAX};
	const struct refusal all[] = {
		{"a chunk that is gone",
		 {.kind = MESSAGE_CHUNK,
		  .chunk = {.n_chunks = 1, .chunks = &unknown}},
		 -ESTALE,
		 "4000000000"},
		{"no chunk",
		 {.kind = MESSAGE_CHUNK,
		  .chunk = {.n_chunks = 1, .chunks = &none}},
		 -EINVAL,
		 "no chunk"},
		{"a filter that is none",
		 {.kind = MESSAGE_LIST, .list = {.prefix = "", .filter = 5}},
		 -EINVAL,
		 "filter 5"},
		{"a prefix that is too long",
		 {.kind = MESSAGE_LIST,
		  .list = {.prefix = prefix, .filter = LIST_ALL}},
		 -ENAMETOOLONG,
		 "256 bytes"},
		{"who holds nothing",
		 {.kind = MESSAGE_WHO, .who = {.name = name}},
		 -ENOENT,
		 name},
		{"who holds a wild slot",
		 {.kind = MESSAGE_WHO, .who = {.name = "", .ref = wild}},
		 -ESTALE,
		 "4294967295"},
		{"a get of nothing",
		 {.kind = MESSAGE_GET, .get = {.n_names = 1, .names = &name}},
		 -ENOENT,
		 name},
		{"a strange timeout",
		 {.kind = MESSAGE_GET,
		  .get = {.timeout_ms = INT32_MIN,
			  .n_names = 1,
			  .names = &name}},
		 -EINVAL,
		 "-2147483648 ms"},
	};

	memset(prefix, 'x', NAME_MAX_SIZE + 1);
	CHECK(all);
}

Test(refusal, of_unknown_kinds_and_malformed_bodies)
{
	static const uint16_t kinds[] = {0, MESSAGE_MAX + 1, 0xffff};
	static uint8_t many[FRAME_MAX_BODY];

	for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++)
		check_body(kinds[i], many, 0, -ENOSYS,
			   "does not support requests");
	for (uint16_t kind = MESSAGE_PING; kind <= MESSAGE_MAX; kind++) {
		check_body(kind, (const uint8_t *)"\xff\xff\xff", 3, -EBADMSG,
			   "malformed");
		/* The string is longer than the message. */
		check_body(kind, (const uint8_t *)"\x0a\x7f", 2, -EBADMSG,
			   "malformed");
	}
	/* The frame has as many empty items as fit. */
	for (size_t i = 0; i + 1 < sizeof(many); i += 2)
		many[i] = 5 << 3 | 2;
	check_body(MESSAGE_ALLOC, many, sizeof(many), -EBADMSG, "malformed");
	/* There is an item in the place of a number. */
	check_body(MESSAGE_ALLOC, (const uint8_t *)"\x28\x01", 2, -EBADMSG,
		   "malformed");
}

/* Every beginning of a valid request is answered. */
Test(refusal, of_a_truncated_body_fails_only_the_request)
{
	const char *name = "test/a";
	struct alloc_item item = view_of(&named.ref, 64, 64);
	struct publish_item publication = {.ref = gone, .name = "test/x"};
	struct release_item release = {gone, 1};
	const struct request all[] = {
		alloc_of(&item, 1),
		publish_of(&publication, 1),
		release_of(&release, 1),
		redeem_of(twice, 2),
		begin_of("test/m/", PUBLISH_REPLACE),
		{.kind = MESSAGE_GET, .get = {.n_names = 1, .names = &name}},
	};
	uint8_t *body;
	size_t size;

	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) {
		cr_assert(
			zero(int, request_encode(&all[i], &body, &size, NULL)));
		for (size_t n = 0; n < size; n++) {
			wire_send_body(me, all[i].kind, ++me->number, body, n,
				       NULL, 0);
			cr_assert(eq(int, wire_receive(me), FRAME_OK));
			(void)wire_status(me, "slots");
		}
		free(body);
	}
}
