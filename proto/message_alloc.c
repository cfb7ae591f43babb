/*
 * Requests that make tensors, and the one that takes shared memory back; to
 * protobuf and back, as those of message_request.c.
 */
#include "proto/message_pb.h"

#include "proto/error.h"
#include <errno.h>
#include <inttypes.h>
#include <string.h>

static void build_alloc_item(const struct alloc_item *from, Fsdp__AllocItem *pb)
{
	pb->dtype = from->type.dtype;
	pb->n_shape = from->type.n_dims;
	pb->shape = (int64_t *)(uintptr_t)from->type.shape;
	if (!tensor_type_is_contiguous(&from->type)) {
		pb->n_strides = from->type.n_dims;
		pb->strides = (int64_t *)(uintptr_t)from->type.strides;
	}
	if (from->is_view) {
		pb->is_view = true;
		pb->base_slot = from->base.slot;
		pb->base_generation = from->base.generation;
		pb->base_offset = from->base_offset;
	}
	pb->name = bytes_from_text(from->name);
}

void *build_alloc(const void *message, struct pb_arena *arena)
{
	const struct alloc_request *from =
		&((const struct request *)message)->alloc;
	Fsdp__AllocRequest *pb =
		pb_arena_message(arena, &fsdp__alloc_request__descriptor);

	if (!pb)
		return NULL;
	pb->gid = from->access.gid;
	pb->mode = from->access.mode;
	pb->bundle = from->bundle;
	pb->timeout_ms = from->timeout_ms;
	pb->device = bytes_from_device(&from->device);
	pb->n_items = from->n_items;
	pb->items = pb_arena_messages(arena, &fsdp__alloc_item__descriptor,
				      from->n_items);
	if (!pb->items)
		return NULL;
	for (uint32_t i = 0; i < from->n_items; i++)
		build_alloc_item(&from->items[i], pb->items[i]);
	return pb;
}

/* Strides are left out, or there is one for each dimension. */
static int take_type(uint32_t dtype, size_t n_shape, const int64_t *shape,
		     size_t n_strides, const int64_t *strides,
		     struct tensor_type *ret, uint64_t *ret_span,
		     struct error *err)
{
	if (n_strides != 0 && n_strides != n_shape)
		return error_set(err, -EINVAL, "%zu strides for %zu dimensions",
				 n_strides, n_shape);
	return type_take(dtype, n_shape, shape, n_strides ? strides : NULL, ret,
			 ret_span, err);
}

static int take_alloc_base(const Fsdp__AllocItem *pb, struct alloc_item *to,
			   struct error *err)
{
	int r;

	to->is_view = pb->is_view;
	if (!pb->is_view) {
		if (tensor_type_is_contiguous(&to->type))
			return 0;
		return error_set(err, -EINVAL,
				 "a tensor with memory of its own is "
				 "contiguous; only views have other strides");
	}
	r = ref_take(pb->base_slot, pb->base_generation, &to->base, err);
	if (r < 0)
		return r;
	return size_take(pb->base_offset, "offset of a view", &to->base_offset,
			 err);
}

static int take_alloc_item(const Fsdp__AllocItem *pb, bool is_in_bundle,
			   struct room *room, struct alloc_item *to,
			   struct error *err)
{
	uint64_t span;
	int r = take_type(pb->dtype, pb->n_shape, pb->shape, pb->n_strides,
			  pb->strides, &to->type, &span, err);

	if (r < 0)
		return r;
	r = take_alloc_base(pb, to, err);
	if (r < 0)
		return r;
	if (is_in_bundle)
		return name_take(pb->name, NAME_OF_TENSOR, room, &to->name,
				 err);
	if (pb->name.len > 0)
		return error_set(err, -EINVAL,
				 "only members of bundles are named when they "
				 "are allocated; publish gives other names");
	to->name = "";
	return 0;
}

int take_alloc(const void *body, struct room *room, void *ret,
	       struct error *err)
{
	const Fsdp__AllocRequest *pb = body;
	struct alloc_request *to = &((struct request *)ret)->alloc;
	size_t size = pb->n_items * sizeof(*to->items);
	int r = count_check(pb->n_items, MESSAGE_MAX_ITEMS, "tensors", err);

	if (r < 0)
		return r;
	r = access_take(0, pb->gid, pb->mode, &to->access, err);
	if (r < 0)
		return r;
	r = timeout_take(pb->timeout_ms, &to->timeout_ms, err);
	if (r < 0)
		return r;
	r = device_take(pb->device, &to->device, err);
	if (r < 0)
		return r;
	r = room_open(room, size, pb->n_items, err);
	if (r < 0)
		return r;
	to->bundle = pb->bundle;
	to->n_items = (uint32_t)pb->n_items;
	to->items = room_array(room, size);
	memset(to->items, 0, size);
	for (size_t i = 0; i < pb->n_items; i++) {
		r = take_alloc_item(pb->items[i], pb->bundle != 0, room,
				    &to->items[i], err);
		if (r < 0)
			return error_wrap(err, r, "specs[%zu]", i);
	}
	return 0;
}

static void build_share_item(const struct share_item *from, Fsdp__ShareItem *pb)
{
	pb->dtype = from->type.dtype;
	pb->n_shape = from->type.n_dims;
	pb->shape = (int64_t *)(uintptr_t)from->type.shape;
	if (!tensor_type_is_contiguous(&from->type)) {
		pb->n_strides = from->type.n_dims;
		pb->strides = (int64_t *)(uintptr_t)from->type.strides;
	}
	pb->offset = from->offset;
}

void *build_share(const void *message, struct pb_arena *arena)
{
	const struct share_request *from =
		&((const struct request *)message)->share;
	Fsdp__ShareRequest *pb =
		pb_arena_message(arena, &fsdp__share_request__descriptor);

	if (!pb)
		return NULL;
	pb->device = bytes_from_device(&from->device);
	pb->gid = from->access.gid;
	pb->mode = from->access.mode;
	if (from->has_handle)
		pb->handle = bytes_from_handle(from->handle);
	pb->size = from->size;
	pb->n_items = from->n_items;
	pb->items = pb_arena_messages(arena, &fsdp__share_item__descriptor,
				      from->n_items);
	if (!pb->items)
		return NULL;
	for (uint32_t i = 0; i < from->n_items; i++)
		build_share_item(&from->items[i], pb->items[i]);
	return pb;
}

/* `size`: of the allocation. */
static int take_share_item(const Fsdp__ShareItem *pb, uint64_t size,
			   struct share_item *to, struct error *err)
{
	uint64_t span;
	int r = take_type(pb->dtype, pb->n_shape, pb->shape, pb->n_strides,
			  pb->strides, &to->type, &span, err);

	if (r < 0)
		return r;
	if (pb->offset > size || span > size - pb->offset)
		return error_set(err, -ERANGE,
				 "its %" PRIu64 " bytes at offset %" PRIu64
				 " leave the allocation, which has %" PRIu64,
				 span, pb->offset, size);
	if (pb->offset % dtype_size(pb->dtype) != 0)
		return error_set(err, -EINVAL,
				 "its offset %" PRIu64 " is no multiple of %u, "
				 "the size of one %s",
				 pb->offset, dtype_size(pb->dtype),
				 dtype_name(pb->dtype));
	to->offset = pb->offset;
	return 0;
}

static int take_share_memory(const Fsdp__ShareRequest *pb,
			     struct share_request *to, struct error *err)
{
	int r = device_take(pb->device, &to->device, err);

	if (r < 0)
		return r;
	if (device_uuid_is_host(&to->device))
		return error_set(err, -EINVAL,
				 "only memory of devices can be shared; host "
				 "memory is put or allocated");
	r = handle_take(pb->handle, &to->has_handle, to->handle, err);
	if (r < 0)
		return r;
	if (pb->size == 0)
		return error_set(err, -EINVAL,
				 "it does not say the allocation's size");
	return size_take(pb->size, "size of the allocation", &to->size, err);
}

int take_share(const void *body, struct room *room, void *ret,
	       struct error *err)
{
	const Fsdp__ShareRequest *pb = body;
	struct share_request *to = &((struct request *)ret)->share;
	size_t size = pb->n_items * sizeof(*to->items);
	int r = count_check(pb->n_items, MESSAGE_MAX_ITEMS, "tensors", err);

	if (r < 0)
		return r;
	r = access_take(0, pb->gid, pb->mode, &to->access, err);
	if (r < 0)
		return r;
	r = take_share_memory(pb, to, err);
	if (r < 0)
		return r;
	r = room_open(room, size, 0, err);
	if (r < 0)
		return r;
	to->n_items = (uint32_t)pb->n_items;
	to->items = room_array(room, size);
	for (size_t i = 0; i < pb->n_items; i++) {
		r = take_share_item(pb->items[i], pb->size, &to->items[i], err);
		if (r < 0)
			return error_wrap(err, r, "specs[%zu]", i);
	}
	return 0;
}

void *build_unshare(const void *message, struct pb_arena *arena)
{
	const struct unshare_request *from =
		&((const struct request *)message)->unshare;
	Fsdp__UnshareRequest *pb =
		pb_arena_message(arena, &fsdp__unshare_request__descriptor);

	if (!pb)
		return NULL;
	pb->slot = from->ref.slot;
	pb->generation = from->ref.generation;
	pb->timeout_ms = from->timeout_ms;
	return pb;
}

int take_unshare(const void *body, struct room *room, void *ret,
		 struct error *err)
{
	const Fsdp__UnshareRequest *pb = body;
	struct unshare_request *to = &((struct request *)ret)->unshare;
	int r = ref_take(pb->slot, pb->generation, &to->ref, err);

	(void)room;
	if (r < 0)
		return r;
	return timeout_take(pb->timeout_ms, &to->timeout_ms, err);
}
