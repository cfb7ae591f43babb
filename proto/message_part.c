/*
 * Memory of the message codec, and checks of parts that many messages have.
 *
 * The structs, texts and arrays of a message are on an arena that only moves a
 * pointer to allocate. So small messages need no heap, and the memory for a
 * hostile message is limited.
 */
#include "proto/message_pb.h"

#include "proto/error.h"
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define MAX_SIZE   (UINT64_C(1) << 62)
#define BLOCK_SIZE 16384u

struct pb_arena_block {
	struct pb_arena_block *next;
	uint64_t bytes[];
};

void pb_arena_init(struct pb_arena *arena, size_t limit)
{
	arena->next = (uint8_t *)arena->first;
	arena->left = sizeof(arena->first);
	arena->limit = limit;
	arena->is_heap_out = false;
	arena->blocks = NULL;
}

void pb_arena_deinit(struct pb_arena *arena)
{
	while (arena->blocks) {
		struct pb_arena_block *next = arena->blocks->next;

		free(arena->blocks);
		arena->blocks = next;
	}
}

/* Begins a new block of at least `size` bytes. The rest of the last block is
 * not used. */
static bool grow(struct pb_arena *arena, size_t size)
{
	struct pb_arena_block *block;

	if (size > arena->limit)
		return false;
	if (size < BLOCK_SIZE && arena->limit >= BLOCK_SIZE)
		size = BLOCK_SIZE;
	block = malloc(sizeof(*block) + size);
	if (!block) {
		arena->is_heap_out = true;
		return false;
	}
	block->next = arena->blocks;
	arena->blocks = block;
	arena->next = (uint8_t *)block->bytes;
	arena->left = size;
	arena->limit -= size;
	return true;
}

void *pb_arena_alloc(struct pb_arena *arena, size_t n, size_t size)
{
	uint8_t *p;

	if (__builtin_mul_overflow(n, size, &size) || size > SIZE_MAX - 7)
		return NULL;
	size = (size + 7) & ~(size_t)7;
	if (size > arena->left && !grow(arena, size))
		return NULL;
	p = arena->next;
	arena->next += size;
	arena->left -= size;
	return p;
}

void *pb_arena_message(struct pb_arena *arena,
		       const ProtobufCMessageDescriptor *descriptor)
{
	void *message = pb_arena_alloc(arena, 1, descriptor->sizeof_message);

	if (message)
		descriptor->message_init(message);
	return message;
}

void *pb_arena_messages(struct pb_arena *arena,
			const ProtobufCMessageDescriptor *descriptor, size_t n)
{
	void **pointers = pb_arena_alloc(arena, n, sizeof(*pointers));
	uint8_t *bodies = pb_arena_alloc(arena, n, descriptor->sizeof_message);

	if (!pointers || !bodies)
		return NULL;
	for (size_t i = 0; i < n; i++) {
		void *body = bodies + i * descriptor->sizeof_message;

		descriptor->message_init(body);
		pointers[i] = body;
	}
	return pointers;
}

int room_open(struct room *room, size_t arrays_size, size_t n_texts,
	      struct error *err)
{
	/* All texts together are not larger than the body, and each gets a 0
	 * after it. */
	size_t size = arrays_size + 8;

	if (n_texts > 0)
		size += room->body_size + n_texts;
	assert(!room->mem);
	room->mem = malloc(size);
	if (!room->mem)
		return error_nomem(err, "the %zu bytes of a message", size);
	room->next = room->mem;
	room->end = room->mem + size;
	return 0;
}

void *room_array(struct room *room, size_t size)
{
	uint8_t *p = room->next;

	assert(size <= (size_t)(room->end - p));
	room->next += size;
	return p;
}

const char *room_text(struct room *room, const uint8_t *data, size_t size)
{
	if (size == 0)
		return "";
	assert(size < (size_t)(room->end - room->next));
	room->end -= size + 1;
	memcpy(room->end, data, size);
	room->end[size] = 0;
	return (char *)room->end;
}

int ref_check(struct slot_ref ref, struct error *err)
{
	if (ref.slot == 0 || ref.generation == 0)
		return error_set(err, -EINVAL,
				 "slot %u, generation %" PRIu64
				 " is not a tensor: both count from 1",
				 ref.slot, ref.generation);
	return 0;
}

int fence_check(uint32_t timeline, uint64_t value, struct error *err)
{
	if (timeline == 0 && value == 0)
		return 0;
	/* INT64_MAX is TIMELINE_POISON of shm/timeline.h. */
	if (timeline == 0 || timeline >= MESSAGE_MAX_TIMELINES || value == 0 ||
	    value >= INT64_MAX)
		return error_set(err, -EINVAL,
				 "there is no value %" PRIu64
				 " of timeline %u: timelines are 1 to %d, and "
				 "values are 1 to below 2^63 - 1",
				 value, timeline, MESSAGE_MAX_TIMELINES - 1);
	return 0;
}

int event_check(uint64_t number, struct error *err)
{
	if (number == 0 || number >= INT64_MAX)
		return error_set(err, -EINVAL,
				 "%" PRIu64 " is not the number of an event: "
				 "numbers are 1 to below 2^63 - 1",
				 number);
	return 0;
}

int size_check(uint64_t size, const char *what, struct error *err)
{
	if (size > MAX_SIZE)
		return error_set(err, -EOVERFLOW,
				 "the %s of %" PRIu64
				 " is more than 2^62 bytes",
				 what, size);
	return 0;
}

int type_take(uint32_t dtype, size_t n_dims, const int64_t *shape,
	      const int64_t *strides, struct tensor_type *ret,
	      uint64_t *ret_span, struct error *err)
{
	size_t size = n_dims * sizeof(*shape);

	if (n_dims > TENSOR_MAX_DIMS)
		return error_set(
			err, -EINVAL,
			"there are %zu dimensions, but a tensor has at most %d",
			n_dims, TENSOR_MAX_DIMS);
	memset(ret, 0, sizeof(*ret));
	ret->dtype = dtype;
	ret->n_dims = (uint32_t)n_dims;
	if (n_dims > 0)
		memcpy(ret->shape, shape, size);
	if (!strides)
		tensor_type_contiguous(ret);
	else if (n_dims > 0)
		memcpy(ret->strides, strides, size);
	return tensor_type_check(ret, ret_span, err);
}
