/*
 * Macros for the rows of the tables of message_field.h.
 *
 * A row has the name of a field, which is the same in our struct and in
 * fsdp.proto, and its checks:
 *
 *	{U32(list_request, filter), IN(LIST_NAMED, LIST_CHARGED, "filter")},
 *
 * It is a compiler error if the field has another type on either side.
 */
#pragma once
#include "proto/message_field.h"

/* Rows are formatted by hand. */
/* clang-format off */

/* protobuf-c's struct of that message. */
#define PB(M)          __typeof__(*fsdp__##M##__unpack(NULL, 0, NULL))
#define OURS(M, f, T)  _Generic(((struct M *)0)->f, T: offsetof(struct M, f))
#define PBOF(M, f, T)  _Generic(((PB(M) *)0)->f, T: offsetof(PB(M), f))
#define SIZEOF(M, f)   sizeof(((struct M *)0)->f)
#define ENSURE(what)                                                           \
	(0 * sizeof(struct {                                                   \
		_Static_assert(what, #what);                                   \
		int i;                                                         \
	}))
/* The count, which the pointer to the array must follow, as in struct
 * repeated. */
#define REPEATED(M, f, T)                                                      \
	(PBOF(M, n_##f, size_t) +                                              \
	 ENSURE(PBOF(M, f, T *) == offsetof(PB(M), n_##f) + sizeof(size_t)))
#define PBBYTES(M, f) PBOF(M, f, ProtobufCBinaryData)

#define ROW(TYPE, M, f, T) .type = FIELD_##TYPE, .at = OURS(M, f, T)
#define BOOL(M, f)                                                             \
	ROW(BOOL, M, f, bool), .pb = PBOF(M, f, protobuf_c_boolean)
#define U32(M, f)       U32_AS(M, f, f)
#define U32_AS(M, f, g) ROW(32, M, f, uint32_t), .pb = PBOF(M, g, uint32_t)
#define I32(M, f)       ROW(32, M, f, int32_t), .pb = PBOF(M, f, int32_t)
#define U64(M, f)       ROW(64, M, f, uint64_t), .pb = PBOF(M, f, uint64_t)
#define I64(M, f)       ROW(64, M, f, int64_t), .pb = PBOF(M, f, int64_t)
#define DOUBLE(M, f)    ROW(64, M, f, double), .pb = PBOF(M, f, double)
#define REF(M, f)       REF_AS(M, f, slot, generation)
#define REF_AS(M, f, s, g)                                                     \
	ROW(REF, M, f, struct slot_ref), .pb = PBOF(M, s, uint32_t),           \
					 .pb2 = PBOF(M, g, uint64_t)
/* Access without the uid, which requests do not have. */
#define ACCESS(M)                                                              \
	ROW(ACCESS, M, access, struct access_class),                           \
		.pb = PBOF(M, gid, uint32_t), .pb2 = PBOF(M, mode, uint32_t)
#define TYPE(M)                                                                \
	ROW(TYPE, M, type, struct tensor_type),                                \
		.pb = PBOF(M, dtype, uint32_t),                                \
		.pb2 = REPEATED(M, shape, int64_t)
#define STRIDES(M) .strides = REPEATED(M, strides, int64_t)
#define DEVICE(M)                                                              \
	ROW(DEVICE, M, device, struct device_uuid), .pb = PBBYTES(M, device),  \
		.size = sizeof(struct device_uuid), .what = "device's UUID"
#define TEXT(M, f, max_size, noun)                                             \
	ROW(TEXT, M, f, const char *), .pb = PBBYTES(M, f), .max = max_size,   \
				       .what = noun
#define NAME(M, f, form)                                                       \
	ROW(NAME, M, f, const char *), .pb = PBBYTES(M, f), .check = NAME_##form
#define NAMES(M, form)                                                         \
	ROW(NAMES, M, names, const char **), .n = OURS(M, n_names, uint32_t),  \
		.pb = REPEATED(M, names, ProtobufCBinaryData),                 \
		.size = sizeof(char *), .max = MESSAGE_MAX_ITEMS,              \
		.what = "names", .min = 1, .check = NAME_##form
#define ARRAY(TYPE, M, f)                                                      \
	ROW(TYPE, M, f[0], uint8_t), .pb = PBBYTES(M, f), .size = SIZEOF(M, f)
#define BYTES(M, f, noun) ARRAY(BYTES, M, f), .what = noun
/* Bytes with a has_... flag in our struct. */
#define MAYBE_BYTES(M, f, noun)                                                \
	ARRAY(MAYBE_BYTES, M, f), .n = OURS(M, has_##f, bool), .what = noun
#define HANDLE(M, f)                                                           \
	ROW(HANDLE, M, f, const uint8_t *), .pb = PBBYTES(M, f),               \
		.size = MESSAGE_HANDLE_SIZE, .what = "IPC handle"
#define KEYS(M, f)                                                             \
	.type = FIELD_KEYS, .at = offsetof(struct M, f), .pb = PBBYTES(M, f),  \
	.n = OURS(M, n_##f, uint32_t), .size = TICKET_SIZE, .min = 1,          \
	.max = MESSAGE_MAX_ITEMS, .what = #f
/* An array of `least` to `most` numbers. `f` is its name in fsdp.proto. */
#define NUMBERS(M, ours, f, T, least, most, noun)                              \
	ROW(NUMBERS, M, ours, T *), .pb = REPEATED(M, f, T),                   \
		.size = sizeof(T), .min = least, .max = most, .what = noun
#define COUNT(M, f) .n = OURS(M, f, uint32_t)
#define ITEMS(M, f, item, least, most, noun)                                   \
	ROW(ITEMS, M, f, struct item *), .n = OURS(M, n_##f, uint32_t),        \
		.pb = REPEATED(M, f, PB(item) *), .size = sizeof(struct item), \
		.items = &body_##item, .min = least, .max = most, .what = noun
#define CHUNKS(M)      ITEMS(M, chunks, chunk_ref, 0, FRAME_MAX_FDS, "chunks")
#define TENSORS(M, item)                                                       \
	ITEMS(M, items, item, 1, MESSAGE_MAX_ITEMS, "tensors")
#define PAGE(M, f, item)                                                       \
	ITEMS(M, f, item, 0, MESSAGE_MAX_ITEMS, #f), .label = #f
#define COLUMNS(M, f, item, most, noun)                                        \
	ROW(COLUMNS, M, f, struct item *), .n = OURS(M, n_##f, uint32_t),      \
		.size = sizeof(struct item), .items = &body_##item, .min = 1,  \
		.max = most, .what = noun
#define BYTE_COLUMN(M, of, f)                                                  \
	ROW(BYTE_COLUMN, M, f, uint32_t), .pb = PBBYTES(of, f)
#define COLUMN(M, of, f, T)                                                    \
	ROW(COLUMN, M, f, T), .pb = REPEATED(of, f, T)
#define PLACES_ROW(M, item)                                                    \
	.pb = PBOF(M, places, Fsdp__Places *), .size = sizeof(struct item)
#define PLACES(M)                                                              \
	ROW(PLACES, M, places, struct tensor_place *),                         \
		PLACES_ROW(M, tensor_place), COUNT(M, n_places),               \
		.max = MESSAGE_MAX_ITEMS
#define PLACE(M)                                                               \
	ROW(PLACES_HERE, M, place, struct tensor_place),                       \
		PLACES_ROW(M, tensor_place), .n = NO_COUNT, .min = 1, .max = 1
#define PLACE_ARRAY(M, least, most)                                            \
	ROW(PLACES_HERE, M, places[0], struct tensor_place),                   \
		PLACES_ROW(M, tensor_place), COUNT(M, n_places), .min = least, \
		.max = most
/* The places at the beginning of items. This row must come after the row of the
 * items. */
#define PLACES_IN_ITEMS(M, item)                                               \
	ROW(PLACES_IN_ITEMS, M, items, struct item *), PLACES_ROW(M, item),    \
		COUNT(M, n_items),                                             \
		.max = MESSAGE_MAX_ITEMS + ENSURE(!offsetof(struct item, place))

/* --- what may follow in a row -------------------------------------------- */

#define CHECKED(CHECK)       .check = CHECK_##CHECK
#define IN(least, most, noun)                                                  \
	CHECKED(IN), .min = least, .max = most, .what = noun
#define ID(noun)             CHECKED(ID), .what = noun
#define SIZE(noun)           CHECKED(SIZE), .what = noun
#define FLAGS(all)           CHECKED(FLAGS), .max = all
#define PUBLISH_ALL                                                            \
	(PUBLISH_REPLACE | PUBLISH_EVICTABLE | PUBLISH_TIED |                  \
	 PUBLISH_MUST_EXIST)
#define PUBLISH_OF_BUNDLE                                                      \
	((PUBLISH_ALL & ~PUBLISH_EVICTABLE) | PUBLISH_ONCE)
#define TTL                  CHECKED(TTL)
#define TIMEOUT              CHECKED(TIMEOUT)
#define DTYPE                CHECKED(DTYPE)
#define DTYPE_OR_NONE        CHECKED(DTYPE_OR_NONE)
#define EVENT                CHECKED(EVENT)
#define LABEL(text)          .label = text
#define CODE(errno_)         .code = -(errno_)
#define GATE(M, f, ...)                                                        \
	.gate = _Generic(((struct M *)0)->f, __VA_ARGS__),                     \
	.gate_at = offsetof(struct M, f)
#define IF(M, f)     GATE(M, f, bool: GATE_IF_TRUE, uint64_t: GATE_IF_NUMBER)
#define UNLESS(M, f)                                                           \
	GATE(M, f, bool: GATE_UNLESS_TRUE, const char *: GATE_UNLESS_TEXT)

/* --- tables -------------------------------------------------------------- */

#define BODY_AS(linkage, M, descriptor, check, ...)                            \
	static const struct field fields_##M[] = {__VA_ARGS__};                \
	linkage const struct body body_##M = {                                 \
		descriptor, sizeof(struct M),                                  \
		sizeof(fields_##M) / sizeof(*fields_##M), fields_##M, check}
/* Defines body_<noun> of a request or a reply, with its rows. `check` may be
 * NULL. */
#define BODY(M, check, ...)                                                    \
	BODY_AS(, M, &fsdp__##M##__descriptor, check, __VA_ARGS__)
/* Defines the body of a reply that is PAGE_OF() items. */
#define PAGE_BODY(M, item)                                                     \
	BODY(M, NULL, {PAGE(M, items, item)}, {U64(M, next_cursor)})
/* Defines the body of the items of an array, which is used in one file only. */
#define ITEM(M, check, ...)                                                    \
	BODY_AS(static, M, &fsdp__##M##__descriptor, check, __VA_ARGS__)
/* Does the same for items that are encoded as columns of the message. */
#define COLUMNS_OF(M, check, ...) BODY_AS(static, M, NULL, check, __VA_ARGS__)
