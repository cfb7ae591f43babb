/*
 * Bad input, by raw frames, to a broker that has objects of every kind. The
 * broker refuses it with its code and a sentence that names the object, and
 * changes nothing.
 */
#pragma once
#include "proto/error.h"
#include "tests/lib/daemon.h"
#include "tests/lib/wire.h"
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <string.h>

static struct daemon daemon_;
static struct wire *me, *other;
static struct tensor_place named;  /* "test/a", 4096 bytes, held once */
static struct tensor_place loose;  /* 4096 bytes, which we are writing */
static struct tensor_place theirs; /* which `other` is writing */
static struct slot_ref gone;       /* was released before */
static struct slot_ref member;     /* "test/m/x" of the committed bundle */
static uint64_t staged;            /* "test/s/", with the member "test/s/x" */
static uint64_t staged_by_other;
static uint8_t tickets[2][TICKET_SIZE]; /* of `named`: one use, redeemed */
static uint8_t twice[2][TICKET_SIZE];   /* the first one, twice */

/* --- the stage ----------------------------------------------------------- */

static inline struct alloc_item vector(const char *name, int64_t size)
{
	struct alloc_item item = {
		.type = {.dtype = DTYPE_U8, .n_dims = 1, .shape = {size}},
		.name = name,
	};

	tensor_type_contiguous(&item.type);
	return item;
}

static inline uint64_t begin(struct wire *wire, const char *name)
{
	const struct request request = {
		.kind = MESSAGE_BUNDLE_BEGIN,
		.bundle_begin = {.name = name, .access = {.gid = GID_DEFAULT}},
	};

	wire_must(wire, wire_call(wire, &request));
	return wire->reply.bundle.bundle;
}

static inline struct tensor_place add_member(struct wire *wire, uint64_t bundle,
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

	wire_must(wire, wire_call(wire, &request));
	return wire->reply.places.places[0];
}

static inline int end_bundle(struct wire *wire, enum message_kind kind,
			     uint64_t id)
{
	const struct request request = {
		.kind = (uint16_t)kind,
		.bundle_end = {.bundle = id},
	};

	return wire_call(wire, &request);
}

static inline int make_ticket(struct wire *wire, const struct slot_ref *ref,
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

static inline int redeem(struct wire *wire, const uint8_t (*ids)[TICKET_SIZE],
			 uint32_t n)
{
	const struct request request = {
		.kind = MESSAGE_REDEEM,
		.redeem = {.n_tickets = n, .tickets = ids},
	};

	return wire_call(wire, &request);
}

static inline void make_tickets(void)
{
	for (int i = 0; i < 2; i++)
		wire_must(me,
			  make_ticket(me, &named.ref, 3600 * 1000, tickets[i]));
	wire_must(me, redeem(me, &tickets[1], 1));
	wire_must(me, wire_release(me, &named.ref, 1));
	memcpy(twice[0], tickets[0], TICKET_SIZE);
	memcpy(twice[1], tickets[0], TICKET_SIZE);
}

static inline void setup(void)
{
	struct tensor_place place;
	uint64_t bundle;

	daemon_start(&daemon_);
	me = wire_open(daemon_socket(&daemon_));
	other = wire_open(daemon_socket(&daemon_));
	wire_must(me, wire_alloc(me, 4096, NULL, -1, &named));
	wire_must(me, wire_publish(me, &named.ref, "test/a", 0));
	wire_must(me, wire_alloc(me, 4096, NULL, -1, &loose));
	wire_must(other, wire_alloc(other, 4096, NULL, -1, &theirs));
	wire_must(me, wire_alloc(me, 64, NULL, -1, &place));
	gone = place.ref;
	wire_must(me, wire_release(me, &gone, 1));
	bundle = begin(me, "test/m/");
	member = add_member(me, bundle, "test/m/x").ref;
	wire_must(me, end_bundle(me, MESSAGE_BUNDLE_COMMIT, bundle));
	staged = begin(me, "test/s/");
	(void)add_member(me, staged, "test/s/x");
	staged_by_other = begin(other, "test/o/");
	make_tickets();
}

static inline void teardown(void)
{
	wire_close(me);
	wire_close(other);
	daemon_stop(&daemon_);
}

static inline void check_unchanged(const struct wire_counts *before,
				   const char *what)
{
	struct wire_counts after;

	wire_count(other, &after);
	cr_assert(eq(ptr, (void *)wire_counts_differ(before, &after), NULL),
		  "%s changed %s", what, wire_counts_differ(before, &after));
}

/* A request that is refused, with the code and the sentence. */
struct refusal {
	const char *what;
	struct request request;
	int code;
	const char *says;
};

static inline void check_refusal(const struct refusal *it,
				 const struct wire_counts *before)
{
	int r = wire_call(me, &it->request);

	cr_assert(eq(int, r, it->code), "%s: %s", it->what, wire_sentence(me));
	cr_assert(ne(ptr, strstr(wire_sentence(me), it->says), NULL),
		  "%s: \"%s\" does not say \"%s\"", it->what, wire_sentence(me),
		  it->says);
	check_unchanged(before, it->what);
}

static inline void check_refusals(const struct refusal *all, size_t n)
{
	struct wire_counts before;

	/* The broker forgets replies that were read. */
	(void)wire_status(me, "slots");
	wire_count(other, &before);
	for (size_t i = 0; i < n; i++)
		check_refusal(&all[i], &before);
}

#define CHECK(all) check_refusals(all, sizeof(all) / sizeof(*(all)))

/* --- requests ------------------------------------------------------------ */

static inline struct request alloc_of(struct alloc_item *items, uint32_t n)
{
	return (struct request){
		.kind = MESSAGE_ALLOC,
		.alloc = {.access = {.gid = GID_DEFAULT},
			  .n_items = n,
			  .items = items},
	};
}

static inline struct request member_of(uint64_t bundle,
				       struct alloc_item *items, uint32_t n)
{
	struct request request = alloc_of(items, n);

	request.alloc.bundle = bundle;
	return request;
}

static inline struct request publish_of(struct publish_item *items, uint32_t n)
{
	return (struct request){
		.kind = MESSAGE_PUBLISH,
		.publish = {.n_items = n, .items = items},
	};
}

static inline struct request release_of(struct release_item *items, uint32_t n)
{
	return (struct request){
		.kind = MESSAGE_RELEASE,
		.release = {.n_items = n, .items = items},
	};
}

static inline struct request redeem_of(const uint8_t (*ids)[TICKET_SIZE],
				       uint32_t n)
{
	return (struct request){
		.kind = MESSAGE_REDEEM,
		.redeem = {.n_tickets = n, .tickets = ids},
	};
}

static inline struct request begin_of(const char *name, uint32_t flags)
{
	return (struct request){
		.kind = MESSAGE_BUNDLE_BEGIN,
		.bundle_begin = {.name = name,
				 .access = {.gid = GID_DEFAULT},
				 .flags = flags},
	};
}

/* --- bytes --------------------------------------------------------------- */

/* Body in bytes, with counts that the encoder would not write. */
static inline size_t put_varint(uint8_t *at, uint64_t value)
{
	size_t n = 0;

	for (; value > 127; value >>= 7)
		at[n++] = (uint8_t)(value | 128);
	at[n++] = (uint8_t)value;
	return n;
}

/* Write a field that contains bytes. Returns its size. */
static inline size_t put_field(uint8_t *at, unsigned int field,
			       const void *bytes, size_t size)
{
	size_t n = put_varint(at, field << 3 | 2);

	n += put_varint(at + n, size);
	memcpy(at + n, bytes, size);
	return n + size;
}

static inline void check_body(uint16_t kind, const uint8_t *body, size_t size,
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
