#include "tests/integration/refusal.h"

struct wire *me, *other;
struct tensor_place named, loose, theirs;
struct slot_ref gone, member;
uint64_t staged, staged_by_other;
uint8_t tickets[2][TICKET_SIZE], twice[2][TICKET_SIZE];

/* --- requests and calls -------------------------------------------------- */

struct alloc_item vector(const char *name, int64_t size)
{
	struct alloc_item item = {
		.type = {.dtype = DTYPE_U8, .n_dims = 1, .shape = {size}},
		.name = name,
	};

	tensor_type_contiguous(&item.type);
	return item;
}

struct request alloc_of(struct alloc_item *items, uint32_t n)
{
	return (struct request){
		.kind = MESSAGE_ALLOC,
		.alloc = {.access = {.gid = GID_DEFAULT},
			  .n_items = n,
			  .items = items},
	};
}

struct request member_of(uint64_t bundle, struct alloc_item *items, uint32_t n)
{
	struct request request = alloc_of(items, n);

	request.alloc.bundle = bundle;
	return request;
}

struct request publish_of(struct publish_item *items, uint32_t n)
{
	return (struct request){
		.kind = MESSAGE_PUBLISH,
		.publish = {.n_items = n, .items = items},
	};
}

struct request release_of(struct release_item *items, uint32_t n)
{
	return (struct request){
		.kind = MESSAGE_RELEASE,
		.release = {.n_items = n, .items = items},
	};
}

struct request redeem_of(const uint8_t (*ids)[TICKET_SIZE], uint32_t n)
{
	return (struct request){
		.kind = MESSAGE_REDEEM,
		.redeem = {.n_tickets = n, .tickets = ids},
	};
}

struct request begin_of(const char *name, uint32_t flags)
{
	return (struct request){
		.kind = MESSAGE_BUNDLE_BEGIN,
		.bundle_begin = {.name = name,
				 .access = {.gid = GID_DEFAULT},
				 .flags = flags},
	};
}

uint64_t begin(struct wire *wire, const char *name)
{
	const struct request request = begin_of(name, 0);

	wire_must(wire, wire_call(wire, &request));
	return wire->reply.bundle.bundle;
}

struct tensor_place add_member(struct wire *wire, uint64_t bundle,
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

int end_bundle(struct wire *wire, enum message_kind kind, uint64_t id)
{
	const struct request request = {
		.kind = (uint16_t)kind,
		.bundle_commit = {.bundle = id},
	};

	return wire_call(wire, &request);
}

int make_ticket(struct wire *wire, const struct slot_ref *ref, uint64_t ttl_ms,
		uint8_t *ret)
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

int redeem(struct wire *wire, const uint8_t (*ids)[TICKET_SIZE], uint32_t n)
{
	const struct request request = redeem_of(ids, n);

	return wire_call(wire, &request);
}

/* --- the broker ---------------------------------------------------------- */

static void make_tickets(void)
{
	for (int i = 0; i < 2; i++)
		wire_must(me,
			  make_ticket(me, &named.ref, 3600 * 1000, tickets[i]));
	wire_must(me, redeem(me, &tickets[1], 1));
	wire_must(me, wire_release(me, &named.ref));
	memcpy(twice[0], tickets[0], TICKET_SIZE);
	memcpy(twice[1], tickets[0], TICKET_SIZE);
}

void refusal_setup(void)
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
	wire_must(me, wire_release(me, &gone));
	bundle = begin(me, "test/m/");
	member = add_member(me, bundle, "test/m/x").ref;
	wire_must(me, end_bundle(me, MESSAGE_BUNDLE_COMMIT, bundle));
	staged = begin(me, "test/s/");
	(void)add_member(me, staged, "test/s/x");
	staged_by_other = begin(other, "test/o/");
	make_tickets();
}

void refusal_teardown(void)
{
	wire_close(me);
	wire_close(other);
	daemon_stop(&daemon_);
}

/* --- checks -------------------------------------------------------------- */

static void check_unchanged(const struct wire_counts *before, const char *what)
{
	struct wire_counts after;

	wire_count(other, &after);
	cr_assert(eq(ptr, (void *)wire_counts_differ(before, &after), NULL),
		  "%s changed %s", what, wire_counts_differ(before, &after));
}

static void check_refusal(const struct refusal *it,
			  const struct wire_counts *before)
{
	int r = wire_call(me, &it->request);

	cr_assert(eq(int, r, it->code), "%s: %s", it->what, wire_sentence(me));
	cr_assert(ne(ptr, strstr(wire_sentence(me), it->says), NULL),
		  "%s: \"%s\" does not say \"%s\"", it->what, wire_sentence(me),
		  it->says);
	check_unchanged(before, it->what);
}

void check_refusals(const struct refusal *all, size_t n)
{
	struct wire_counts before;

	/* The request tells the broker that earlier replies were read, and so
	 * ends their records. */
	(void)wire_status(me, "slots");
	wire_count(other, &before);
	for (size_t i = 0; i < n; i++)
		check_refusal(&all[i], &before);
}

/* --- bytes --------------------------------------------------------------- */

size_t put_varint(uint8_t *at, uint64_t value)
{
	size_t n = 0;

	for (; value > 127; value >>= 7)
		at[n++] = (uint8_t)(value | 128);
	at[n++] = (uint8_t)value;
	return n;
}

size_t put_field(uint8_t *at, unsigned int field, const void *bytes,
		 size_t size)
{
	size_t n = put_varint(at, field << 3 | 2);

	n += put_varint(at + n, size);
	memcpy(at + n, bytes, size);
	return n + size;
}

void check_body(uint16_t kind, const uint8_t *body, size_t size, int code,
		const char *says)
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
