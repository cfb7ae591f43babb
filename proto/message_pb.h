/*
 * The memory of the message codec, and the checks of parts that many messages
 * have. Private to message*.c, as is the generated code.
 *
 * There are two kinds of memory. The arena contains protobuf-c's structs while
 * a message is encoded or decoded; it is mostly on the stack. The room is the
 * one allocation of a decoded message, which stays.
 */
#pragma once
#include "fsdp.pb-c.h"
#include "proto/message.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct error;

/* The maximum size of the result of places_encode() for that many places and
 * chunks. */
#define MANIFEST_MAX_SIZE                                                      \
	(UINT64_C(512) * MESSAGE_MAX_PLACES + UINT64_C(64) * MESSAGE_MAX_CHUNKS)

/*
 * The heap that protobuf-c's structs may need for one message. Valid messages
 * stay below the limit: they have few items, and a column grows by a factor of
 * eight at most. A frame full of empty items would need 40 times its size.
 */
#define UNPACK_MIN    ((size_t)512 * 1024)
#define UNPACK_FACTOR 16

/* --- arena --------------------------------------------------------------- */

struct pb_arena_block;

struct pb_arena {
	uint8_t *next;
	size_t left;  /* bytes after `next` */
	size_t limit; /* bytes that it may still allocate */
	bool is_heap_out;
	struct pb_arena_block *blocks;
	uint64_t first[512];
};

/* `limit` is the maximum size of its heap in bytes. The arena must not be moved
 * afterwards. */
void pb_arena_init(struct pb_arena *arena, size_t limit);
void pb_arena_deinit(struct pb_arena *arena);

/* Allocates `n` times `size` bytes, which are not cleared. Returns NULL if the
 * limit is reached or there is no memory. */
void *pb_arena_alloc(struct pb_arena *arena, size_t n, size_t size);

/* Allocates one initialised message, or returns NULL. */
void *pb_arena_message(struct pb_arena *arena,
		       const ProtobufCMessageDescriptor *descriptor);
/* Allocates an array of pointers to `n` initialised messages, or returns
 * NULL. */
void *pb_arena_messages(struct pb_arena *arena,
			const ProtobufCMessageDescriptor *descriptor, size_t n);

/* --- bytes --------------------------------------------------------------- */

/* Decodes a message; it and all its parts are in the arena. Returns NULL if the
 * bytes are malformed or the arena is full (if the heap has no memory,
 * arena->is_heap_out is set). */
void *pb_unpack(const ProtobufCMessageDescriptor *descriptor,
		const uint8_t *bytes, size_t size, struct pb_arena *arena);
/* Returns the last value of the 64-bit field that is `offset` bytes into the
 * struct, or 0 if the field is absent or the bytes are malformed. */
uint64_t pb_peek(const ProtobufCMessageDescriptor *descriptor,
		 const uint8_t *bytes, size_t size, size_t offset);
/* Returns the bytes of a message, which the caller frees, or NULL if there is
 * no memory. */
uint8_t *pb_pack(const ProtobufCMessage *pb, size_t *ret_size);

/* --- room ---------------------------------------------------------------- */

/* Arrays begin at the front, texts at the end. All pointers are NULL if nothing
 * was needed. */
struct room {
	/* of the message, which is the maximum size of all its texts */
	size_t body_size;
	uint8_t *mem;
	uint8_t *next;
	uint8_t *end;
};

/* Allocates space for arrays of `arrays_size` bytes together and for `n_texts`
 * texts. */
int room_open(struct room *room, size_t arrays_size, size_t n_texts,
	      struct error *err);
/* Takes space for one array. `size` is a multiple of 8, except for the last
 * array. */
void *room_array(struct room *room, size_t size);
/* Copies the bytes and adds a 0. For no bytes it returns "", which needs no
 * space. */
const char *room_text(struct room *room, const uint8_t *data, size_t size);

/* --- parts of messages --------------------------------------------------- */

/* Checks that both are 0, or that the value is one that a timeline can have. */
int fence_check(uint32_t timeline, uint64_t value, struct error *err);
/* Checks the number of an event. */
int event_check(uint64_t number, struct error *err);
int ref_check(struct slot_ref ref, struct error *err);
/* Checks a size or offset, such that the sum of two does not overflow. */
int size_check(uint64_t size, const char *what, struct error *err);

/*
 * Checks and takes a type, and computes the bytes that it spans. If `strides`
 * is NULL, it is contiguous. `shape` and `strides` have `n_dims` entries.
 */
int type_take(uint32_t dtype, size_t n_dims, const int64_t *shape,
	      const int64_t *strides, struct tensor_type *ret,
	      uint64_t *ret_span, struct error *err);

/*
 * Encodes places. The first is at `first`, and each of the others `step` bytes
 * after the one before it, because in some messages they are parts of larger
 * structs. The result borrows from them. Returns NULL if there is no memory.
 */
Fsdp__Places *places_build(const struct tensor_place *first, size_t step,
			   size_t n, struct pb_arena *arena);
/* Checks that the columns have matching lengths, and counts the places. */
int places_count(const Fsdp__Places *pb, size_t max, size_t *ret_n,
		 struct error *err);

/* A position in the columns. */
struct places_cursor {
	size_t i; /* index of the next place */
	size_t shape, strided, strides;
	const char *names; /* NULL: no place has a name */
	const char *names_end;
};

/* These read places one at a time, after places_count(): places_begin(),
 * places_next() for each place, and places_end(). The names are borrowed from
 * `pb`. */
struct places_cursor places_begin(const Fsdp__Places *pb);
int places_next(const Fsdp__Places *pb, struct places_cursor *at,
		struct tensor_place *ret, struct error *err);
int places_end(const Fsdp__Places *pb, const struct places_cursor *at,
	       struct error *err);

/* Reads all places into the caller's array, after places_count(). */
int places_take(const Fsdp__Places *pb, size_t step, struct room *room,
		struct tensor_place *ret_first, struct error *err);
