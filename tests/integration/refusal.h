/*
 * Bad input, by raw frames, to a broker that has objects of every kind. The
 * broker refuses it with its code and a sentence that names the object, and
 * changes nothing.
 *
 *	CHECKED_SUITE(refusal, refusal_setup, refusal_teardown, .timeout = 300);
 */
#pragma once
#include "proto/error.h"
#include "tests/lib/check.h"
#include "tests/lib/client.h"
#include "tests/lib/wire.h"
#include <errno.h>
#include <string.h>

extern struct wire *me, *other;
extern struct tensor_place named;  /* "test/a", 4096 bytes, held once */
extern struct tensor_place loose;  /* 4096 bytes, not published */
extern struct tensor_place theirs; /* the same, but of `other` */
extern struct slot_ref gone;       /* released before the tests */
extern struct slot_ref member;     /* "test/m/x" of the committed bundle */
extern uint64_t staged;            /* "test/s/", with the member "test/s/x" */
extern uint64_t staged_by_other;
extern uint8_t tickets[2][TICKET_SIZE]; /* of `named`: the second is used up */
extern uint8_t twice[2][TICKET_SIZE];   /* the first ticket, twice */

/* Start the broker, connect `me` and `other`, and make the objects above. */
void refusal_setup(void);
void refusal_teardown(void);

/* A request that is refused, with the code and a part of the sentence. */
struct refusal {
	const char *what;
	struct request request;
	int code;
	const char *says;
};

/* Send each request by `me`, and check that it is refused and changes
 * nothing. */
void check_refusals(const struct refusal *all, size_t n);
#define CHECK(all) check_refusals(all, sizeof(all) / sizeof(*(all)))

/* --- requests ------------------------------------------------------------ */

struct alloc_item vector(const char *name, int64_t size);
struct request alloc_of(struct alloc_item *items, uint32_t n);
struct request member_of(uint64_t bundle, struct alloc_item *items, uint32_t n);
struct request publish_of(struct publish_item *items, uint32_t n);
struct request release_of(struct release_item *items, uint32_t n);
struct request redeem_of(const uint8_t (*ids)[TICKET_SIZE], uint32_t n);
struct request begin_of(const char *name, uint32_t flags);

/* --- calls; each returns the code ---------------------------------------- */

int make_ticket(struct wire *wire, const struct slot_ref *ref, uint64_t ttl_ms,
		uint8_t *ret);
int redeem(struct wire *wire, const uint8_t (*ids)[TICKET_SIZE], uint32_t n);
int end_bundle(struct wire *wire, enum message_kind kind, uint64_t id);
/* These two calls must succeed. */
uint64_t begin(struct wire *wire, const char *name);
struct tensor_place add_member(struct wire *wire, uint64_t bundle,
			       const char *name);

/* --- bytes --------------------------------------------------------------- */

/* Bodies in bytes can have counts that the encoder would not write. These write
 * a number, and a field that contains bytes. They return the size written. */
size_t put_varint(uint8_t *at, uint64_t value);
size_t put_field(uint8_t *at, unsigned int field, const void *bytes,
		 size_t size);

/* Send the body by `me`, and check that it is refused and changes nothing. */
void check_body(uint16_t kind, const uint8_t *body, size_t size, int code,
		const char *says);
