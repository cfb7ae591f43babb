/*
 * Tables of the fields of messages. Private to message*.c.
 *
 * message_rows.h has the macros for the rows. The interpreter in
 * message_field.c processes the rows in order, in both directions. The check
 * function of a body has the rules for several fields together.
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
	FIELD_TYPE, /* type of a tensor */
	FIELD_DEVICE,
	FIELD_TEXT,
	FIELD_NAME,
	FIELD_NAMES,
	FIELD_BYTES,       /* exactly as many as the array has */
	FIELD_MAYBE_BYTES, /* the same, or no bytes */
	FIELD_HANDLE,      /* a pointer to the bytes of a handle, or NULL */
	FIELD_KEYS,        /* TICKET_SIZE bytes each */
	FIELD_NUMBERS,
	FIELD_ITEMS,
	FIELD_COLUMNS,     /* items whose rows have the two types below */
	FIELD_BYTE_COLUMN, /* a uint32_t that is encoded as one byte */
	FIELD_COLUMN,      /* 64-bit values */
	FIELD_PLACES,
	FIELD_PLACES_HERE, /* within the struct itself */
	FIELD_PLACES_IN_ITEMS,
};

/* The check of one number. */
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

/* The check of a name. */
enum name_form {
	NAME_OF_TENSOR,
	NAME_OF_TENSOR_OR_NONE, /* or "" */
	NAME_OF_BUNDLE,
	NAME_OF_ANY, /* of a tensor or a bundle */
};

/* A field may be used and sent only if a field above it has a certain value. */
enum field_gate {
	GATE_NONE,
	GATE_IF_TRUE,
	GATE_IF_NUMBER, /* not 0 */
	GATE_UNLESS_TRUE,
	GATE_UNLESS_TEXT, /* not "" */
};

struct body;

#define NO_COUNT UINT16_MAX /* there is exactly one item */

struct field {
	uint8_t type, gate;
	uint8_t check;     /* for a name: enum name_form */
	uint16_t at;       /* offset in our struct */
	uint16_t n;        /* offset of its count there, or of its flag */
	uint16_t gate_at;  /* offset of the field of the gate there */
	uint16_t pb, pb2;  /* offsets in protobuf-c's struct */
	uint16_t strides;  /* FIELD_TYPE: offset there; 0: always contiguous */
	uint16_t size;     /* bytes of one element */
	int16_t code;      /* of the error; 0: -EINVAL */
	uint32_t min, max; /* of a number or a count; of a text in bytes */
	const char *what;  /* for sentences: "which ...", "there is no ..." */
	const char *label; /* put before sentences, or NULL */
	const struct body *items;
};

struct body {
	const ProtobufCMessageDescriptor *descriptor;
	size_t size; /* of our struct, in bytes */
	size_t n_fields;
	const struct field *fields;
	/* Checks rules for several fields after all were decoded, and may set
	 * fields that were left out. NULL if there are no such rules. */
	int (*check)(void *ours, struct error *err);
};

/* Returns NULL if there is no memory. */
void *body_build(const struct body *body, const void *from,
		 struct pb_arena *arena);
/* `to` has the size of the body's struct. */
int body_take(const struct body *body, const void *pb, struct room *room,
	      void *to, struct error *err);

#define X(KIND, number, noun, action, request, reply, ...)                     \
	extern const struct body body_##request##_request, body_##reply##_reply;
MESSAGE_KINDS(X)
#undef X

/* The body of a reply with a negative code. */
struct error_reply {
	const char *sentence;
};

extern const struct body body_error_reply;
