/*
 * Converts between protobuf-c's structs and their bytes, using the descriptors
 * of the generated code.
 *
 * The functions of protobuf-c support any message, but need several passes and
 * an allocation for each part, and our lists have thousands of items with
 * twenty fields. This code reads a message in one pass and skips unknown
 * fields. fsdp.proto has no fields with presence, and only the types below.
 */
#include "proto/message_pb.h"

#include <stdlib.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
	       "fixed numbers are copied");

#define WIRE_VARINT PROTOBUF_C_WIRE_TYPE_VARINT
#define WIRE_64     PROTOBUF_C_WIRE_TYPE_64BIT
#define WIRE_BYTES  PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED
#define WIRE_32     PROTOBUF_C_WIRE_TYPE_32BIT

static bool is_repeated(const ProtobufCFieldDescriptor *f)
{
	return f->label == PROTOBUF_C_LABEL_REPEATED;
}

/* The wire type, and the size of a value in protobuf-c's struct. */
struct type {
	uint8_t wire, width;
};

static const struct type types[] = {
	[PROTOBUF_C_TYPE_INT32] = {WIRE_VARINT, 4},
	[PROTOBUF_C_TYPE_SINT32] = {WIRE_VARINT, 4},
	[PROTOBUF_C_TYPE_UINT32] = {WIRE_VARINT, 4},
	[PROTOBUF_C_TYPE_FIXED32] = {WIRE_32, 4},
	[PROTOBUF_C_TYPE_INT64] = {WIRE_VARINT, 8},
	[PROTOBUF_C_TYPE_UINT64] = {WIRE_VARINT, 8},
	[PROTOBUF_C_TYPE_SINT64] = {WIRE_VARINT, 8},
	[PROTOBUF_C_TYPE_FIXED64] = {WIRE_64, 8},
	[PROTOBUF_C_TYPE_DOUBLE] = {WIRE_64, 8},
	[PROTOBUF_C_TYPE_BOOL] = {WIRE_VARINT, sizeof(protobuf_c_boolean)},
	[PROTOBUF_C_TYPE_BYTES] = {WIRE_BYTES, sizeof(ProtobufCBinaryData)},
	[PROTOBUF_C_TYPE_MESSAGE] = {WIRE_BYTES, sizeof(ProtobufCMessage *)},
};
_Static_assert(sizeof(protobuf_c_boolean) == 4, "a small number");

static unsigned int wire_of(ProtobufCType type)
{
	return types[type].wire;
}

static size_t width_of(ProtobufCType type)
{
	return types[type].width;
}

/* --- from bytes ---------------------------------------------------------- */

struct input {
	const uint8_t *at, *end;
};

static bool take_varint(struct input *in, uint64_t *ret)
{
	uint64_t value = 0;

	for (unsigned int shift = 0; shift < 64 && in->at < in->end;
	     shift += 7) {
		uint8_t byte = *in->at++;

		value |= (uint64_t)(byte & 0x7f) << shift;
		if (byte < 0x80) {
			*ret = value;
			return true;
		}
	}
	return false;
}

static bool take_fixed(struct input *in, size_t size, void *to)
{
	if ((size_t)(in->end - in->at) < size)
		return false;
	memcpy(to, in->at, size);
	in->at += size;
	return true;
}

/* Takes the bytes after a length. */
static bool take_inner(struct input *in, struct input *ret)
{
	uint64_t size;

	if (!take_varint(in, &size) || size > (uint64_t)(in->end - in->at))
		return false;
	*ret = (struct input){in->at, in->at + size};
	in->at += size;
	return true;
}

static void set_number(ProtobufCType type, uint64_t value, void *to)
{
	uint32_t small = (uint32_t)value;

	if (type == PROTOBUF_C_TYPE_BOOL)
		small = value != 0;
	else if (type == PROTOBUF_C_TYPE_SINT32)
		small = small >> 1 ^ -(small & 1);
	else if (type == PROTOBUF_C_TYPE_SINT64)
		value = value >> 1 ^ -(value & 1);
	if (width_of(type) == 4)
		memcpy(to, &small, 4);
	else
		memcpy(to, &value, 8);
}

static bool take_number(struct input *in, ProtobufCType type, void *to)
{
	uint64_t value;

	if (wire_of(type) != WIRE_VARINT)
		return take_fixed(in, width_of(type), to);
	if (!take_varint(in, &value))
		return false;
	set_number(type, value, to);
	return true;
}

/* Returns the capacity of an array with `n` values. It follows from `n`, so it
 * need not be stored. */
static size_t capacity_of(size_t n)
{
	return n <= 1 ? n : (size_t)1 << (64 - __builtin_clzll(n - 1));
}

/* Makes space for `n` more values of a repeated field. Returns the first of
 * them, or NULL if the arena has no space. */
static void *append(const ProtobufCFieldDescriptor *f, void *pb, size_t n,
		    struct pb_arena *arena)
{
	size_t *count = (size_t *)(void *)((char *)pb + f->quantifier_offset);
	char **data = (char **)(void *)((char *)pb + f->offset);
	size_t width = width_of(f->type), old = *count;

	if (old + n > capacity_of(old)) {
		char *more = pb_arena_alloc(arena, capacity_of(old + n), width);

		if (!more)
			return NULL;
		if (old)
			memcpy(more, *data, old * width);
		*data = more;
	}
	*count += n;
	return *data + old * width;
}

static size_t count_varints(const struct input *in)
{
	size_t n = 0;

	for (const uint8_t *p = in->at; p < in->end; p++)
		n += *p < 0x80;
	return n;
}

static bool take_packed(const ProtobufCFieldDescriptor *f, struct input *in,
			void *pb, struct pb_arena *arena)
{
	size_t size = (size_t)(in->end - in->at), width = width_of(f->type);
	bool is_fixed = wire_of(f->type) != WIRE_VARINT;
	size_t n = is_fixed ? size / width : count_varints(in);
	char *to;

	if (size == 0)
		return true;
	if ((is_fixed && size % width) || n == 0)
		return false;
	to = append(f, pb, n, arena);
	if (!to)
		return false;
	if (is_fixed)
		return take_fixed(in, size, to);
	for (; in->at < in->end; to += width)
		if (!take_number(in, f->type, to))
			return false;
	return true;
}

static bool take_fields(const ProtobufCMessageDescriptor *descriptor,
			struct input *in, void *pb, struct pb_arena *arena);

static bool take_message(const ProtobufCFieldDescriptor *f, struct input *in,
			 void **to, struct pb_arena *arena)
{
	if (!*to)
		*to = pb_arena_message(arena, f->descriptor);
	return *to && take_fields(f->descriptor, in, *to, arena);
}

static bool take_bytes(const struct input *in, ProtobufCBinaryData *to,
		       struct pb_arena *arena)
{
	to->len = (size_t)(in->end - in->at);
	to->data = pb_arena_alloc(arena, to->len, 1);
	if (to->len && to->data)
		memcpy(to->data, in->at, to->len);
	return to->data;
}

static bool take_field(const ProtobufCFieldDescriptor *f, unsigned int wire,
		       struct input *in, void *pb, struct pb_arena *arena)
{
	void *to = (char *)pb + f->offset;
	bool is_number = wire_of(f->type) != WIRE_BYTES;
	struct input inner;

	if (wire == WIRE_BYTES && !take_inner(in, &inner))
		return false;
	if (is_number && is_repeated(f) && wire == WIRE_BYTES)
		return take_packed(f, &inner, pb, arena);
	if (wire != wire_of(f->type))
		return false;
	if (is_repeated(f)) {
		to = append(f, pb, 1, arena);
		if (!to)
			return false;
		memset(to, 0, width_of(f->type));
	}
	if (is_number)
		return take_number(in, f->type, to);
	return f->type == PROTOBUF_C_TYPE_MESSAGE
		       ? take_message(f, &inner, to, arena)
		       : take_bytes(&inner, to, arena);
}

static bool skip_field(unsigned int wire, struct input *in)
{
	struct input inner;
	uint64_t number;

	switch (wire) {
	case WIRE_VARINT:
		return take_varint(in, &number);
	case WIRE_64:
		return take_fixed(in, 8, &number);
	case WIRE_32:
		return take_fixed(in, 4, &number);
	case WIRE_BYTES:
		return take_inner(in, &inner);
	default:
		return false;
	}
}

/* Fields are mostly numbered 1, 2, 3 and so on, so this is faster than a binary
 * search. */
static const ProtobufCFieldDescriptor *
find_field(const ProtobufCMessageDescriptor *descriptor, uint32_t id)
{
	if (id <= descriptor->n_fields && descriptor->fields[id - 1].id == id)
		return &descriptor->fields[id - 1];
	return protobuf_c_message_descriptor_get_field(descriptor, id);
}

static bool take_fields(const ProtobufCMessageDescriptor *descriptor,
			struct input *in, void *pb, struct pb_arena *arena)
{
	while (in->at < in->end) {
		const ProtobufCFieldDescriptor *f;
		unsigned int wire;
		uint64_t tag;

		if (!take_varint(in, &tag) || tag < 8 || tag > UINT32_MAX)
			return false;
		wire = tag & 7;
		f = find_field(descriptor, (uint32_t)(tag >> 3));
		if (f ? !take_field(f, wire, in, pb, arena)
		      : !skip_field(wire, in))
			return false;
	}
	return true;
}

void *pb_unpack(const ProtobufCMessageDescriptor *descriptor,
		const uint8_t *bytes, size_t size, struct pb_arena *arena)
{
	struct input in = {bytes, bytes + size};
	void *pb = pb_arena_message(arena, descriptor);

	return pb && take_fields(descriptor, &in, pb, arena) ? pb : NULL;
}

uint64_t pb_peek(const ProtobufCMessageDescriptor *descriptor,
		 const uint8_t *bytes, size_t size, size_t offset)
{
	struct input in = {bytes, bytes + size};
	uint64_t tag, value = 0;

	while (in.at < in.end && take_varint(&in, &tag) && tag >= 8 &&
	       tag <= UINT32_MAX) {
		const ProtobufCFieldDescriptor *f =
			find_field(descriptor, (uint32_t)(tag >> 3));
		unsigned int wire = tag & 7;

		if (f && f->offset == offset && wire == wire_of(f->type)
			    ? !take_number(&in, f->type, &value)
			    : !skip_field(wire, &in))
			break;
	}
	return in.at == in.end ? value : 0;
}

/* --- to bytes ------------------------------------------------------------ */

#define VARINT_MAX  10
#define NUMBER_MAX  20  /* including the tag */
#define OUTPUT_SIZE 512 /* at the beginning; most messages are smaller */

/* The bytes that are being written. After a failure they are incomplete. */
struct output {
	uint8_t *begin, *at, *end;
};

static bool grow(struct output *out, size_t n)
{
	size_t used = (size_t)(out->at - out->begin);
	size_t size = 2 * (used + n);
	uint8_t *begin;

	if (size < OUTPUT_SIZE)
		size = OUTPUT_SIZE;
	begin = realloc(out->begin, size);
	if (!begin)
		return false;
	*out = (struct output){begin, begin + used, begin + size};
	return true;
}

/* Makes space for `n` more bytes. */
static inline bool reserve(struct output *out, size_t n)
{
	return n <= (size_t)(out->end - out->at) || grow(out, n);
}

/* The caller has made space for VARINT_MAX bytes. */
static inline void put_varint(struct output *out, uint64_t value)
{
	for (; value >= 0x80; value >>= 7)
		*out->at++ = (uint8_t)(value | 0x80);
	*out->at++ = (uint8_t)value;
}

static bool put_sized(struct output *out, const void *data, size_t size)
{
	if (!reserve(out, VARINT_MAX + size))
		return false;
	put_varint(out, size);
	if (size)
		memcpy(out->at, data, size);
	out->at += size;
	return true;
}

/* Begins a field whose length is not known yet. One byte is left for the
 * length, which is enough for most. Returns the offset of the contents. */
static size_t begin_inner(struct output *out)
{
	out->at++;
	return (size_t)(out->at - out->begin);
}

static bool end_inner(struct output *out, size_t begin)
{
	size_t size = (size_t)(out->at - out->begin) - begin;
	uint8_t *at;

	if (!reserve(out, VARINT_MAX))
		return false;
	at = out->begin + begin;
	out->at = at - 1;
	if (size >= 0x80) {
		size_t n = (size_t)(63 - __builtin_clzll(size)) / 7;

		memmove(at + n, at, size);
	}
	put_varint(out, size);
	out->at += size;
	return true;
}

/* Returns the number as it is encoded in a varint. */
static uint64_t number_at(ProtobufCType type, const void *from)
{
	uint64_t value;
	uint32_t small;

	if (width_of(type) == 8) {
		memcpy(&value, from, 8);
		return type == PROTOBUF_C_TYPE_SINT64
			       ? value << 1 ^ -(value >> 63)
			       : value;
	}
	memcpy(&small, from, 4);
	if (type == PROTOBUF_C_TYPE_SINT32)
		return small << 1 ^ -(small >> 31);
	if (type == PROTOBUF_C_TYPE_INT32)
		return (uint64_t)(int32_t)small;
	return type == PROTOBUF_C_TYPE_BOOL ? small != 0 : small;
}

static bool is_zero(ProtobufCType type, const void *from)
{
	uint64_t value;
	uint32_t small;

	if (width_of(type) == 4) {
		memcpy(&small, from, 4);
		return small == 0;
	}
	/* this is also a pointer to a message, or a number of bytes */
	memcpy(&value, from, 8);
	return value == 0;
}

/* The caller has made space for VARINT_MAX bytes. */
static void put_number(struct output *out, ProtobufCType type, const void *from)
{
	if (wire_of(type) == WIRE_VARINT) {
		put_varint(out, number_at(type, from));
		return;
	}
	memcpy(out->at, from, width_of(type));
	out->at += width_of(type);
}

static bool put_message(struct output *out, const ProtobufCMessage *pb);

static bool put_value(struct output *out, const ProtobufCFieldDescriptor *f,
		      const void *from)
{
	const ProtobufCBinaryData *bytes = from;
	ProtobufCMessage *const *message = from;
	size_t begin;

	if (!reserve(out, NUMBER_MAX))
		return false;
	put_varint(out, f->id << 3 | wire_of(f->type));
	if (wire_of(f->type) != WIRE_BYTES) {
		put_number(out, f->type, from);
		return true;
	}
	if (f->type == PROTOBUF_C_TYPE_BYTES)
		return put_sized(out, bytes->data, bytes->len);
	begin = begin_inner(out);
	return put_message(out, *message) && end_inner(out, begin);
}

static bool put_packed(struct output *out, const ProtobufCFieldDescriptor *f,
		       const char *from, size_t n)
{
	size_t width = width_of(f->type), begin;

	if (!reserve(out, NUMBER_MAX))
		return false;
	put_varint(out, f->id << 3 | WIRE_BYTES);
	if (wire_of(f->type) != WIRE_VARINT)
		return put_sized(out, from, n * width);
	begin = begin_inner(out);
	for (; n > 0; n--, from += width) {
		if (!reserve(out, VARINT_MAX))
			return false;
		put_number(out, f->type, from);
	}
	return end_inner(out, begin);
}

static bool put_repeated(struct output *out, const ProtobufCFieldDescriptor *f,
			 const ProtobufCMessage *pb)
{
	size_t n = *(const size_t *)(const void *)((const char *)pb +
						   f->quantifier_offset);
	const char *from;

	memcpy(&from, (const char *)pb + f->offset, sizeof(from));
	if (n > 0 && f->flags & PROTOBUF_C_FIELD_FLAG_PACKED)
		return put_packed(out, f, from, n);
	for (; n > 0; n--, from += width_of(f->type))
		if (!put_value(out, f, from))
			return false;
	return true;
}

static bool put_message(struct output *out, const ProtobufCMessage *pb)
{
	const ProtobufCFieldDescriptor *f = pb->descriptor->fields;
	size_t n = pb->descriptor->n_fields;

	for (; n > 0; n--, f++) {
		const void *from = (const char *)pb + f->offset;

		if (is_repeated(f) ? !put_repeated(out, f, pb)
				   : !is_zero(f->type, from) &&
					     !put_value(out, f, from))
			return false;
	}
	return true;
}

uint8_t *pb_pack(const ProtobufCMessage *pb, size_t *ret_size)
{
	struct output out = {0};

	/* makes the buffer of an empty message not NULL */
	if (!reserve(&out, 1) || !put_message(&out, pb)) {
		free(out.begin);
		return NULL;
	}
	*ret_size = (size_t)(out.at - out.begin);
	return out.begin;
}
