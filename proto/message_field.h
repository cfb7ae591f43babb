/*
 * Messages as tables of their fields. Private to message*.c.
 *
 * message_rows.h has the macros that make the rows. The interpreter in
 * message_field.c goes through them in their order, in both directions. What
 * concerns several fields is in the check function of the body.
 */
#pragma once
#include "proto/message_pb.h"
#include <errno.h>

enum field_type {
	FIELD_BOOL,
	FIELD_32,
	FIELD_64,
	FIELD_REF,
	FIELD_ACCESS,
	FIELD_TYPE, /* of a tensor */
	FIELD_DEVICE,
	FIELD_TEXT,
	FIELD_NAME,
	FIELD_NAMES,
	FIELD_BYTES,       /* as many as the array has */
	FIELD_MAYBE_BYTES, /* or none */
	FIELD_HANDLE,      /* a pointer to the bytes of a handle, or NULL */
	FIELD_KEYS,        /* TICKET_SIZE bytes each */
	FIELD_NUMBERS,
	FIELD_ITEMS,
	FIELD_COLUMNS,     /* items, whose rows are of the two types below */
	FIELD_BYTE_COLUMN, /* a uint32_t that travels as one byte */
	FIELD_COLUMN,      /* 64 bits */
	FIELD_PLACES,
	FIELD_PLACES_HERE, /* in the struct itself */
	FIELD_PLACES_IN_ITEMS,
};

/* Of one number. */
enum field_check {
	CHECK_NONE,
	CHECK_IN,
	CHECK_ID,
	CHECK_SIZE,
	CHECK_TTL,
	CHECK_TIMEOUT,
	CHECK_FLAGS,
	CHECK_DTYPE,
	CHECK_DTYPE_OR_NONE,
	CHECK_EVENT,
};

/* A row only counts, and is only sent, if a field above it says so. */
enum field_gate {
	GATE_NONE,
	GATE_IF_TRUE,
	GATE_IF_NUMBER, /* not 0 */
	GATE_UNLESS_TRUE,
	GATE_UNLESS_TEXT, /* not "" */
};

struct body;

#define NO_COUNT UINT16_MAX /* there is exactly one */

struct field {
	uint8_t type, gate;
	uint8_t check;     /* of a name: enum name_form */
	uint16_t at;       /* in our struct */
	uint16_t n;        /* its count there, or the flag that says it is */
	uint16_t gate_at;  /* there, too */
	uint16_t pb, pb2;  /* in protobuf-c's struct: what there is of it */
	uint16_t strides;  /* FIELD_TYPE: there; 0: always contiguous */
	uint16_t size;     /* bytes of one element */
	int16_t code;      /* what a refusal has; 0: -EINVAL */
	uint32_t min, max; /* of a number, of a count; bytes of a text */
	const char *what;  /* "which ...", "there is no ..." */
	const char *label; /* goes in front of the sentence; NULL: nothing */
	const struct body *items;
};

struct body {
	const ProtobufCMessageDescriptor *descriptor;
	size_t size; /* of our struct */
	size_t n_fields;
	const struct field *fields;
	/* Rules across fields, after they are all taken; may fill in what was
	 * left out. NULL: there are none. */
	int (*check)(void *ours, struct error *err);
};

/* NULL: no heap. */
void *body_build(const struct body *body, const void *from,
		 struct pb_arena *arena);
/* `to` is as large as the body's struct. */
int body_take(const struct body *body, const void *pb, struct room *room,
	      void *to, struct error *err);

#define X(KIND, number, noun, request, reply, ...)                             \
	extern const struct body body_##request##_request, body_##reply##_reply;
MESSAGE_KINDS(X)
#undef X

/* What a reply with a negative code has. */
struct error_reply {
	const char *sentence;
};

extern const struct body body_error_reply;
