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
#define UNPACK_MIN    (512u * 1024)
#define UNPACK_FACTOR 16

/* --- arena ------------------------------------------------------------- */

struct pb_arena_block;

struct pb_arena {
	ProtobufCAllocator allocator; /* of this arena, for protobuf-c */
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

/* --- room -------------------------------------------------------------- */

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
char *room_text(struct room *room, const uint8_t *data, size_t size);

/* --- parts of messages --------------------------------------------------- */

enum name_form {
	NAME_OF_TENSOR,
	NAME_OF_TENSOR_OR_NONE, /* "" is fine */
	NAME_OF_BUNDLE,
	NAME_OF_ANY, /* a tensor's or a bundle's */
};

/* Borrows; NULL is "". */
ProtobufCBinaryData bytes_from_text(const char *text);

/* Checked for its size and 0 bytes; `what` names it in the sentence. */
int text_take(ProtobufCBinaryData bytes, size_t max_size, const char *what,
	      struct room *room, const char **ret, struct error *err);
int name_take(ProtobufCBinaryData bytes, enum name_form form, struct room *room,
	      const char **ret, struct error *err);
int names_take(size_t n, const ProtobufCBinaryData *bytes, enum name_form form,
	       struct room *room, const char ***ret, struct error *err);
/* Borrows; no bytes for the host. */
ProtobufCBinaryData bytes_from_device(const struct device_uuid *device);
int device_take(ProtobufCBinaryData bytes, struct device_uuid *ret,
		struct error *err);
/* Borrows. */
ProtobufCBinaryData bytes_from_nccl_id(const uint8_t *id);
/* None, or one. */
int nccl_id_take(ProtobufCBinaryData bytes, bool *ret_has, uint8_t *ret,
		 struct error *err);
/* Borrows. */
ProtobufCBinaryData bytes_from_handle(const uint8_t *handle);
/* None, or one of that size; what is in it others judge. */
int handle_take(ProtobufCBinaryData bytes, bool *ret_has, uint8_t *ret,
		struct error *err);
/* Both 0, or a value that a timeline can have. */
int order_check(uint32_t timeline, uint64_t value, struct error *err);
/* The number of an event. */
int event_check(uint64_t number, struct error *err);
/* Exactly `size` bytes, such as a token. */
int secret_take(ProtobufCBinaryData bytes, size_t size, const char *what,
		uint8_t *ret, struct error *err);

/* Is 1 <= n <= max? */
int count_check(size_t n, size_t max, const char *what, struct error *err);
/* Open the room for a page: its array of `n` items, none is fine, and texts. */
int page_open(struct room *room, size_t n, size_t item_size, size_t n_texts,
	      void **ret, struct error *err);
/* Chunks whose fds travel in one frame. */
int chunks_check(size_t n, struct error *err);
int ref_take(uint32_t slot, uint64_t generation, struct slot_ref *ret,
	     struct error *err);
int access_take(uint32_t uid, uint32_t gid, uint32_t mode,
		struct access_class *ret, struct error *err);
int flags_take(uint32_t flags, uint32_t allowed, uint32_t *ret,
	       struct error *err);
/* 0 is the number of nothing; `what` names it in the sentence. */
int id_take(uint64_t id, const char *what, uint64_t *ret, struct error *err);
/* Is it a dtype? */
int dtype_take(uint32_t dtype, uint32_t *ret, struct error *err);
/* The same, or 0. */
int dtype_take_or_none(uint32_t dtype, uint32_t *ret, struct error *err);
int timeout_take(int32_t timeout_ms, int32_t *ret, struct error *err);
int ttl_take(uint64_t ttl_ms, uint64_t *ret, struct error *err);
/* Bytes or an offset that sums may be made of. */
int size_take(uint64_t size, const char *what, uint64_t *ret,
	      struct error *err);

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

Fsdp__ChunkRef **chunks_build(const struct chunk_ref *chunks, size_t n,
			      struct pb_arena *arena);
/* Into an array that the caller has room for. */
int chunks_take(size_t n, Fsdp__ChunkRef *const *pb, struct chunk_ref *ret,
		struct error *err);

/* --- messages --------------------------------------------------------------
 */

#define PUBLISH_ALL                                                            \
	(PUBLISH_REPLACE | PUBLISH_EVICTABLE | PUBLISH_TIED |                  \
	 PUBLISH_MUST_EXIST)

/* How one kind of request or reply is turned into protobuf and back. */
struct codec {
	const ProtobufCMessageDescriptor *descriptor;
	/* NULL: no heap. Without a function the body is empty. */
	void *(*build)(const void *message, struct pb_arena *arena);
	int (*take)(const void *pb, struct room *room, void *ret,
		    struct error *err);
};

/* Indexed by kind. build and take get a struct request, or a struct reply. A
 * kind has a descriptor in one of the two tables for its direction. */
extern const struct codec request_codecs[MESSAGE_MAX + 1];
extern const struct codec collective_request_codecs[MESSAGE_MAX + 1];
extern const struct codec reply_codecs[MESSAGE_MAX + 1];
extern const struct codec collective_reply_codecs[MESSAGE_MAX + 1];
/* Of request_codecs, in message_alloc.c. */
void *build_alloc(const void *message, struct pb_arena *arena);
int take_alloc(const void *body, struct room *room, void *ret,
	       struct error *err);
void *build_share(const void *message, struct pb_arena *arena);
int take_share(const void *body, struct room *room, void *ret,
	       struct error *err);
void *build_unshare(const void *message, struct pb_arena *arena);
int take_unshare(const void *body, struct room *room, void *ret,
		 struct error *err);
/* Replies with a negative code. */
extern const struct codec error_codec;
/* A places_reply, for encoding a bundle's manifest. */
extern const struct codec manifest_codec;
