/*
 * Bad input, one kind after the other: each is refused with its code and a
 * sentence that names the thing, and nothing has changed.
 */
#include "proto/error.h"
#include "proto/name.h"
#include "tests/lib/daemon.h"
#include "tests/lib/wire.h"
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static struct daemon daemon_;
static struct wire *me, *other;
static struct tensor_place named;  /* "test/a", 4096 bytes, held once */
static struct tensor_place loose;  /* 4096 bytes, being written by us */
static struct tensor_place theirs; /* being written by `other` */
static struct slot_ref gone;       /* was released */
static struct slot_ref member;     /* "test/m/x" of the committed bundle */
static uint64_t staged;            /* "test/s/", has "test/s/x" */
static uint64_t staged_by_other;
static uint8_t tickets[2][TICKET_SIZE]; /* of `named`: one use, used up */
static uint8_t twice[2][TICKET_SIZE];   /* the first one, twice */

/* --- the stage --------------------------------------------------------------
 */

static void must(struct wire *wire, int r)
{
	cr_assert(zero(int, r), "%s", wire_sentence(wire));
}

static struct alloc_item vector(const char *name, int64_t size)
{
	struct alloc_item item = {
		.type = {.dtype = DTYPE_U8, .n_dims = 1, .shape = {size}},
		.name = name,
	};

	tensor_type_contiguous(&item.type);
	return item;
}

static uint64_t begin(struct wire *wire, const char *name)
{
	const struct request request = {
		.kind = MESSAGE_BUNDLE_BEGIN,
		.bundle_begin = {.name = name, .access = {.gid = GID_DEFAULT}},
	};

	must(wire, wire_call(wire, &request));
	return wire->reply.bundle.bundle;
}

static struct tensor_place add_member(struct wire *wire, uint64_t bundle,
				      const char *name)
{
	struct alloc_item item = vector(name, 64);
	const struct request request = {
		.kind = MESSAGE_ALLOC,
		.alloc = {.bundle = bundle,
			  .timeout_ms = -1,
			  .n_items = 1,
			  .items = &item},
	};

	must(wire, wire_call(wire, &request));
	return wire->reply.places.places[0];
}

static int end_bundle(struct wire *wire, enum message_kind kind, uint64_t id)
{
	const struct request request = {
		.kind = (uint16_t)kind,
		.bundle_end = {.bundle = id},
	};

	return wire_call(wire, &request);
}

static int make_ticket(struct wire *wire, const struct slot_ref *ref,
		       uint64_t ttl_ms, uint8_t *ret)
{
	const struct request request = {
		.kind = MESSAGE_TICKET,
		.ticket = {.ref = *ref, .n_uses = 1, .ttl_ms = ttl_ms},
	};
	int r = wire_call(wire, &request);

	if (r == 0)
		memcpy(ret, wire->reply.ticket.ticket, TICKET_SIZE);
	return r;
}

static int redeem(struct wire *wire, const uint8_t (*ids)[TICKET_SIZE],
		  uint32_t n)
{
	const struct request request = {
		.kind = MESSAGE_REDEEM,
		.redeem = {.n_tickets = n, .tickets = ids},
	};

	return wire_call(wire, &request);
}

static void make_tickets(void)
{
	for (int i = 0; i < 2; i++)
		must(me, make_ticket(me, &named.ref, 3600 * 1000, tickets[i]));
	must(me, redeem(me, &tickets[1], 1));
	must(me, wire_release(me, &named.ref, 1));
	memcpy(twice[0], tickets[0], TICKET_SIZE);
	memcpy(twice[1], tickets[0], TICKET_SIZE);
}

static void setup(void)
{
	struct tensor_place place;
	uint64_t bundle;

	daemon_start(&daemon_);
	me = wire_open(daemon_socket(&daemon_));
	other = wire_open(daemon_socket(&daemon_));
	must(me, wire_alloc(me, 4096, NULL, -1, &named));
	must(me, wire_publish(me, &named.ref, "test/a", 0));
	must(me, wire_alloc(me, 4096, NULL, -1, &loose));
	must(other, wire_alloc(other, 4096, NULL, -1, &theirs));
	must(me, wire_alloc(me, 64, NULL, -1, &place));
	gone = place.ref;
	must(me, wire_release(me, &gone, 1));
	bundle = begin(me, "test/m/");
	member = add_member(me, bundle, "test/m/x").ref;
	must(me, end_bundle(me, MESSAGE_BUNDLE_COMMIT, bundle));
	staged = begin(me, "test/s/");
	(void)add_member(me, staged, "test/s/x");
	staged_by_other = begin(other, "test/o/");
	make_tickets();
}

static void teardown(void)
{
	wire_close(me);
	wire_close(other);
	daemon_stop(&daemon_);
}

TestSuite(refusal, .init = setup, .fini = teardown, .timeout = 30);

static void check_unchanged(const struct wire_counts *before, const char *what)
{
	struct wire_counts after;

	wire_count(other, &after);
	cr_assert(eq(ptr, (void *)wire_counts_differ(before, &after), NULL),
		  "%s changed %s", what, wire_counts_differ(before, &after));
}

/* What is refused, and how. */
struct refusal {
	const char *what;
	struct request request;
	int code;
	const char *says;
};

static void check_refusal(const struct refusal *it,
			  const struct wire_counts *before)
{
	int r = wire_call(me, &it->request);

	/* The search for the mapper is bounded in time: on a busy machine it
	 * may not come to an end. */
	while (r == it->code && strstr(wire_sentence(me), "some process still"))
		r = wire_call(me, &it->request);
	cr_assert(eq(int, r, it->code), "%s: %s", it->what, wire_sentence(me));
	cr_assert(ne(ptr, strstr(wire_sentence(me), it->says), NULL),
		  "%s: \"%s\" does not say \"%s\"", it->what, wire_sentence(me),
		  it->says);
	check_unchanged(before, it->what);
}

static void check_refusals(const struct refusal *all, size_t n)
{
	struct wire_counts before;

	/* Answers that were read are forgotten. */
	(void)wire_status(me, "slots");
	wire_count(other, &before);
	for (size_t i = 0; i < n; i++)
		check_refusal(&all[i], &before);
}

#define CHECK(all) check_refusals(all, sizeof(all) / sizeof(*(all)))

/* --- tensors ----------------------------------------------------------------
 */

static struct request alloc_of(struct alloc_item *items, uint32_t n)
{
	return (struct request){
		.kind = MESSAGE_ALLOC,
		.alloc = {.access = {.gid = GID_DEFAULT},
			  .n_items = n,
			  .items = items},
	};
}

static struct request member_of(uint64_t bundle, struct alloc_item *items,
				uint32_t n)
{
	struct request request = alloc_of(items, n);

	request.alloc.bundle = bundle;
	return request;
}

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

/* Counts that the encoder knows nothing of, as bytes. */
static size_t put_varint(uint8_t *at, uint64_t value)
{
	size_t n = 0;

	for (; value > 127; value >>= 7)
		at[n++] = (uint8_t)(value | 128);
	at[n++] = (uint8_t)value;
	return n;
}

/* A field with bytes in it; gives its size. */
static size_t put_field(uint8_t *at, unsigned int field, const void *bytes,
			size_t size)
{
	size_t n = put_varint(at, field << 3 | 2);

	n += put_varint(at + n, size);
	memcpy(at + n, bytes, size);
	return n + size;
}

static void check_body(uint16_t kind, const uint8_t *body, size_t size,
		       int code, const char *says)
{
	struct wire_counts before;

	(void)wire_status(me, "slots");
	wire_count(other, &before);
	wire_send_body(me, kind, ++me->number, body, size, NULL, 0);
	cr_assert(eq(int, wire_receive(me), FRAME_OK));
	cr_assert(eq(int, me->frame.code, code), "%s %s: %s",
		  message_kind_name(kind), says, wire_sentence(me));
	cr_assert(ne(ptr, strstr(wire_sentence(me), says), NULL),
		  "\"%s\" does not say \"%s\"", wire_sentence(me), says);
	check_unchanged(&before, says);
}

Test(refusal, of_dimensions_and_strides_that_do_not_match)
{
	uint8_t item[64], body[128];
	size_t n;

	/* dtype u8, nine sizes */
	n = put_varint(item, 1 << 3);
	n += put_varint(item + n, DTYPE_U8);
	n += put_field(item + n, 2, "\1\1\1\1\1\1\1\1\1", 9);
	n = put_field(body, 5, item, n);
	check_body(MESSAGE_ALLOC, body, n, -EINVAL, "9 dimensions");
	/* one size, two strides */
	n = put_varint(item, 1 << 3);
	n += put_varint(item + n, DTYPE_U8);
	n += put_field(item + n, 2, "\1", 1);
	n += put_field(item + n, 3, "\1\1", 2);
	n = put_field(body, 5, item, n);
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
		 "no tensor in slot"},
		{"a view of no slot", alloc_of(&no_slot, 1), -ESTALE,
		 "4294967295"},
		{"a view of nothing", alloc_of(&none, 1), -EINVAL,
		 "is no tensor"},
		{"a view of what comes later", alloc_of(&not_yet, 1), -ESTALE,
		 "generation"},
		{"a view of a member", alloc_of(&of_member, 1), -EINVAL,
		 "slice it"},
		{"a member that views", member_of(staged, &as_member, 1),
		 -EINVAL, "outside of it"},
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
		 -ENOENT, "stages no bundle"},
		{"nothing", alloc_of(&one, 0), -EINVAL, "no tensors"},
	};

	all[0].request.alloc.timeout_ms = -2;
	all[1].request.alloc.access.mode = 07777;
	CHECK(all);
}

/* Not refused, since they are legal. */
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
	must(me, wire_call(me, &request));
	cr_assert(zero(u64, me->reply.places.places[0].size));
	cr_assert(eq(u64, me->reply.places.places[1].size, 1));
	cr_assert(zero(u64, me->reply.places.places[2].size));
}

/* --- batches ----------------------------------------------------------------
 */

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

/* --- names ------------------------------------------------------------------
 */

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

Test(refusal, of_names_of_the_other_kind)
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
		 "does not end in '/'"},
	};

	CHECK(all);
}

Test(refusal, of_a_name_with_a_zero_in_it)
{
	uint8_t body[32];
	size_t n = put_field(body, 4, "test\0a", 6);

	check_body(MESSAGE_GET, body, n, -EINVAL, "0 byte");
}

/* --- publish ----------------------------------------------------------------
 */

static struct request publish_of(struct publish_item *items, uint32_t n)
{
	return (struct request){
		.kind = MESSAGE_PUBLISH,
		.publish = {.n_items = n, .items = items},
	};
}

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
			    twins[] = {{.ref = loose.ref, .name = "test/x"},
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
		{"twins", publish_of(twins, 2), -EINVAL, "twice"},
	};

	CHECK(all);
}

Test(refusal, of_one_name_twice_leaves_both_unpublished)
{
	struct tensor_place second;
	struct publish_item items[] = {{.ref = loose.ref, .name = "test/x"},
				       {.name = "test/x"}};
	const struct refusal all[] = {
		{"twins", publish_of(items, 2), -EINVAL,
		 "the name is in the batch twice"},
	};

	must(me, wire_alloc(me, 64, NULL, -1, &second));
	items[1].ref = second.ref;
	CHECK(all);
	must(me, wire_publish(me, &loose.ref, "test/x", 0));
}

/* --- release, tickets -------------------------------------------------------
 */

static struct request release_of(struct release_item *items, uint32_t n)
{
	return (struct request){
		.kind = MESSAGE_RELEASE,
		.release = {.n_items = n, .items = items},
	};
}

Test(refusal, of_releases)
{
	struct release_item two = {named.ref, 2}, none = {named.ref, 0},
			    many = {named.ref, UINT32_MAX},
			    foreign = {theirs.ref, 1}, stale = {gone, 1},
			    both[] = {{named.ref, 1}, {named.ref, 1}},
			    half[] = {{named.ref, 1}, {theirs.ref, 1}};
	const struct refusal all[] = {
		{"one too many", release_of(&two, 1), -EINVAL,
		 "1 times, it cannot release it 2 times"},
		{"none", release_of(&none, 1), -EINVAL, "0 holds"},
		{"wildly many", release_of(&many, 1), -EINVAL, "4294967295"},
		{"another's", release_of(&foreign, 1), -EINVAL, "0 times"},
		{"a released one", release_of(&stale, 1), -ESTALE,
		 "no tensor in slot"},
		{"one twice", release_of(both, 2), -EINVAL, "2 times"},
		{"one of ours and one of another's", release_of(half, 2),
		 -EINVAL, "0 times"},
	};

	CHECK(all);
	must(me, wire_release(me, &named.ref, 1));
	cr_assert(eq(int, wire_release(me, &named.ref, 1), -EINVAL));
}

static struct request ticket_of(const struct slot_ref *ref, uint32_t n_uses,
				uint64_t ttl_ms)
{
	return (struct request){
		.kind = MESSAGE_TICKET,
		.ticket = {.ref = *ref, .n_uses = n_uses, .ttl_ms = ttl_ms},
	};
}

static struct request redeem_of(const uint8_t (*ids)[TICKET_SIZE], uint32_t n)
{
	return (struct request){
		.kind = MESSAGE_REDEEM,
		.redeem = {.n_tickets = n, .tickets = ids},
	};
}

Test(refusal, of_tickets)
{
	const uint64_t day = 24 * 3600 * 1000;
	static const uint8_t unknown[1][TICKET_SIZE] = {{1}};
	const struct refusal all[] = {
		{"for no use", ticket_of(&named.ref, 0, 1000), -EINVAL,
		 "number of uses"},
		{"for too many uses", ticket_of(&named.ref, 1000001, 1000),
		 -EINVAL, "1000001"},
		{"for no time", ticket_of(&named.ref, 1, 0), -EINVAL,
		 "time to live"},
		{"for too long", ticket_of(&named.ref, 1, day + 1), -EINVAL,
		 "86400000"},
		{"for ever", ticket_of(&named.ref, 1, UINT64_MAX), -EINVAL,
		 "time to live"},
		{"for another's", ticket_of(&theirs.ref, 1, 1000), -EINVAL,
		 "does not hold"},
		{"for what is gone", ticket_of(&gone, 1, 1000), -ESTALE,
		 "no tensor"},
		{"unknown", redeem_of(unknown, 1), -ENOENT, "ticket 1 of 1"},
		{"used up", redeem_of(tickets, 2), -ENOENT, "ticket 2 of 2"},
		{"twice at once", redeem_of(twice, 2), -ENOENT,
		 "ticket 2 of 2"},
	};

	CHECK(all);
	must(me, redeem(me, &tickets[0], 1));
	cr_assert(eq(int, redeem(me, &tickets[0], 1), -ENOENT));
}

Test(refusal, of_a_ticket_whose_time_is_over)
{
	uint8_t ticket[1][TICKET_SIZE];

	must(me, make_ticket(me, &named.ref, 1, ticket[0]));
	wire_wait_status(me, "tickets", 1);
	cr_assert(eq(int, redeem(me, ticket, 1), -ENOENT));
	cr_assert(ne(ptr, strstr(wire_sentence(me), "expired"), NULL));
}

Test(refusal, of_half_a_ticket)
{
	uint8_t body[32];
	size_t n = put_field(body, 1, tickets[0], TICKET_SIZE - 1);

	check_body(MESSAGE_REDEEM, body, n, -EINVAL, "15 bytes");
}

/* --- bundles ----------------------------------------------------------------
 */

static struct request begin_of(const char *name, uint32_t flags)
{
	return (struct request){
		.kind = MESSAGE_BUNDLE_BEGIN,
		.bundle_begin = {.name = name,
				 .access = {.gid = GID_DEFAULT},
				 .flags = flags},
	};
}

static struct request end_of(enum message_kind kind, uint64_t bundle)
{
	return (struct request){
		.kind = (uint16_t)kind,
		.bundle_end = {.bundle = bundle},
	};
}

Test(refusal, of_bundles)
{
	struct alloc_item outside = vector("test/x", 1),
			  same = vector("test/s/x", 1),
			  itself = vector("test/s", 1),
			  twins[] = {vector("test/s/y", 1),
				     vector("test/s/y", 1)};
	uint64_t empty = begin(me, "test/e/");
	const struct refusal all[] = {
		{"one that is there", begin_of("test/m/", 0), -EEXIST,
		 "test/m/"},
		{"one within", begin_of("test/m/n/", 0), -EEXIST, "test/m/"},
		{"one around", begin_of("test/", 0), -EEXIST, "test/m/"},
		{"one to replace",
		 begin_of("test/x/", PUBLISH_REPLACE | PUBLISH_MUST_EXIST),
		 -ENOENT, "test/x/"},
		{"an evictable one", begin_of("test/x/", PUBLISH_EVICTABLE),
		 -EINVAL, "0x2"},
		{"a member outside", member_of(staged, &outside, 1), -EINVAL,
		 "\"test/x\" does not begin with"},
		{"a member like the bundle", member_of(staged, &itself, 1),
		 -EINVAL, "test/s"},
		{"a member again", member_of(staged, &same, 1), -EEXIST,
		 "test/s/x"},
		{"twins", member_of(staged, twins, 2), -EEXIST, "test/s/y"},
		{"a commit of none", end_of(MESSAGE_BUNDLE_COMMIT, 0), -EINVAL,
		 "which bundle"},
		{"a commit of an unknown one",
		 end_of(MESSAGE_BUNDLE_COMMIT, 999), -ENOENT, "999"},
		{"a commit of another's",
		 end_of(MESSAGE_BUNDLE_COMMIT, staged_by_other), -ENOENT,
		 "stages no bundle"},
		{"an abort of another's",
		 end_of(MESSAGE_BUNDLE_ABORT, staged_by_other), -ENOENT,
		 "stages no bundle"},
		{"an empty commit", end_of(MESSAGE_BUNDLE_COMMIT, empty),
		 -EINVAL, "has no tensors"},
		{"a get of a staged one",
		 {.kind = MESSAGE_BUNDLE_GET,
		  .bundle_get = {.name = "test/s/"}},
		 -ENOENT,
		 "test/s/"},
	};

	CHECK(all);
	must(me, end_bundle(me, MESSAGE_BUNDLE_ABORT, staged));
	cr_assert(
		eq(int, end_bundle(me, MESSAGE_BUNDLE_ABORT, staged), -ENOENT));
}

Test(refusal, of_names_of_members)
{
	const char *name = "test/m/x";
	const struct refusal all[] = {
		{"remove",
		 {.kind = MESSAGE_REMOVE,
		  .remove = {.n_names = 1, .names = &name}},
		 -EINVAL,
		 "member of a bundle"},
	};

	CHECK(all);
}

/* Another process keeps the bundle's memory mapped writable. */
static pid_t map_elsewhere(int fd)
{
	int ready[2];
	char byte;
	pid_t pid;

	cr_assert(zero(int, pipe(ready)));
	pid = fork();
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		/* It would turn what is written behind it red. */
		prctl(PR_SET_NAME, "e\x1b[31mvil");
		if (mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
			 0) == MAP_FAILED)
			_exit(1);
		(void)!write(ready[1], "", 1);
		pause();
		_exit(0);
	}
	cr_assert(eq(int, (int)read(ready[0], &byte, 1), 1));
	close(ready[0]);
	close(ready[1]);
	return pid;
}

Test(refusal, of_a_commit_while_another_process_could_write_names_it)
{
	struct refusal all[] = {
		{"commit", end_of(MESSAGE_BUNDLE_COMMIT, staged), -EBUSY, ""},
	};
	struct tensor_place place = add_member(me, staged, "test/s/y");
	int fd = wire_chunk(me, place.chunk);
	char says[32];
	pid_t pid;

	cr_assert(ge(int, fd, 0));
	pid = map_elsewhere(fd);
	snprintf(says, sizeof(says), "process %d (e?[31mvil)", (int)pid);
	all[0].says = says;
	CHECK(all);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	must(me, end_bundle(me, MESSAGE_BUNDLE_COMMIT, staged));
	close(fd);
}

/* --- the rest ---------------------------------------------------------------
 */

Test(refusal, of_questions)
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
		 {.kind = MESSAGE_LIST, .list = {.prefix = "", .filter = 4}},
		 -EINVAL,
		 "filter 4"},
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

Test(refusal, of_kinds_and_bodies_that_are_none)
{
	static const uint16_t kinds[] = {0, MESSAGE_MAX + 1, 0xffff};
	static uint8_t many[FRAME_MAX_BODY];

	for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++)
		check_body(kinds[i], many, 0, -ENOSYS, "knows no request");
	for (uint16_t kind = MESSAGE_PING; kind <= MESSAGE_MAX; kind++) {
		check_body(kind, (const uint8_t *)"\xff\xff\xff", 3, -EBADMSG,
			   message_kind_name(kind));
		/* A string that is longer than the message. */
		check_body(kind, (const uint8_t *)"\x0a\x7f", 2, -EBADMSG,
			   message_kind_name(kind));
	}
	/* As many empty items as fit a frame. */
	for (size_t i = 0; i + 1 < sizeof(many); i += 2)
		many[i] = 5 << 3 | 2;
	check_body(MESSAGE_ALLOC, many, sizeof(many), -EBADMSG, "malformed");
	/* An item where a number should be. */
	check_body(MESSAGE_ALLOC, (const uint8_t *)"\x28\x01", 2, -EBADMSG,
		   "malformed");
}

/* Every beginning of proper requests: whatever each says, it is answered. */
Test(refusal, of_a_truncated_body_costs_nothing_but_the_request)
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
