/*
 * What the parts of the message codec share: memory, and the checks of things
 * that many messages contain. Private to message*.c, as the generated code is.
 *
 * Two kinds of memory: the `arena` holds protobuf-c's own structs while one
 * message is encoded or decoded and mostly lives on the stack; the `room` is
 * the one allocation that a decoded message leaves behind.
 */
#pragma once
#include "fsdp.pb-c.h"
#include "proto/message.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct error;

/* What places_encode() makes of so many places and chunks at most. */
#define MANIFEST_MAX_SIZE                                                      \
	(UINT64_C(512) * MESSAGE_MAX_PLACES + UINT64_C(64) * MESSAGE_MAX_CHUNKS)

/*
 * Heap that protobuf-c's structs may take for one message. Proper ones stay
 * below: they have few items, and a column grows eightfold at most. A frame
 * full of empty items would take 40 times its size.
 */
#define UNPACK_MIN    ((size_t)512 * 1024)
#define UNPACK_FACTOR 16

/* --- arena --------------------------------------------------------------- */

struct pb_arena_block;

struct pb_arena {
	uint8_t *next;
	size_t left;  /* bytes behind `next` */
	size_t limit; /* bytes of heap it may still take */
	bool is_heap_out;
	struct pb_arena_block *blocks;
	uint64_t first[512];
};

/* `limit`: bytes of heap that it may take. Must not move afterwards. */
void pb_arena_init(struct pb_arena *arena, size_t limit);
void pb_arena_deinit(struct pb_arena *arena);

/* `n` times `size` bytes, not cleared; NULL: beyond the limit or no heap. */
void *pb_arena_alloc(struct pb_arena *arena, size_t n, size_t size);

/* One initialised message, or NULL. */
void *pb_arena_message(struct pb_arena *arena,
		       const ProtobufCMessageDescriptor *descriptor);
/* An array of pointers to `n` initialised messages, or NULL. */
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

/* Arrays from the front, text from the back. All NULL: nothing was needed. */
struct room {
	size_t body_size; /* of the message: all its text fits in that */
	uint8_t *mem;
	uint8_t *next;
	uint8_t *end;
};

/* Make room for arrays of these sizes together and for `n_texts` texts. */
int room_open(struct room *room, size_t arrays_size, size_t n_texts,
	      struct error *err);
/* Room for one array; `size` is a multiple of 8, or it is the last array. */
void *room_array(struct room *room, size_t size);
/* Copy bytes and put a 0 behind them; no bytes take no room. */
const char *room_text(struct room *room, const uint8_t *data, size_t size);

/* --- parts of messages --------------------------------------------------- */

enum name_form {
	NAME_OF_TENSOR,
	NAME_OF_TENSOR_OR_NONE, /* "" is fine */
	NAME_OF_BUNDLE,
	NAME_OF_ANY, /* a tensor's or a bundle's */
};

/* Checked for its size and 0 bytes; `what` names it in the sentence. */
int text_take(ProtobufCBinaryData bytes, size_t max_size, const char *what,
	      struct room *room, const char **ret, struct error *err);
int name_take(ProtobufCBinaryData bytes, enum name_form form, struct room *room,
	      const char **ret, struct error *err);
/* Both 0, or a value that a timeline can have. */
int fence_check(uint32_t timeline, uint64_t value, struct error *err);
/* The number of an event. */
int event_check(uint64_t number, struct error *err);
int ref_check(struct slot_ref ref, struct error *err);
/* Bytes or an offset that sums may be made of. */
int size_check(uint64_t size, const char *what, struct error *err);

/*
 * A checked type and the bytes it spans. `strides` NULL: contiguous. `shape`
 * and `strides` have `n_dims` entries.
 */
int type_take(uint32_t dtype, size_t n_dims, const int64_t *shape,
	      const int64_t *strides, struct tensor_type *ret,
	      uint64_t *ret_span, struct error *err);

/*
 * Places stand at `first` and every `step` bytes behind it, since they are
 * parts of larger structs in some messages. Building borrows; NULL: no heap.
 */
Fsdp__Places *places_build(const struct tensor_place *first, size_t step,
			   size_t n, struct pb_arena *arena);
/* Check that the columns fit together and give the number of places. */
int places_count(const Fsdp__Places *pb, size_t max, size_t *ret_n,
		 struct error *err);

/* How far the columns are read. */
struct places_cursor {
	size_t i; /* the next place */
	size_t shape, strided, strides;
	const char *names; /* NULL: none has a name */
	const char *names_end;
};

/* One by one, after places_count(): begin, `n` times next, end. The names are
 * those in `pb`. */
struct places_cursor places_begin(const Fsdp__Places *pb);
int places_next(const Fsdp__Places *pb, struct places_cursor *at,
		struct tensor_place *ret, struct error *err);
int places_end(const Fsdp__Places *pb, const struct places_cursor *at,
	       struct error *err);

/* Into places that the caller has room for, after places_count(). */
int places_take(const Fsdp__Places *pb, size_t step, struct room *room,
		struct tensor_place *ret_first, struct error *err);
