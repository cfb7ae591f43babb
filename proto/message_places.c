/*
 * Encodes and decodes places as columns.
 *
 * The manifest of a bundle has thousands of places. protobuf-c needs about 300
 * ns for a message of ten fields, but copies a column of numbers of fixed size
 * at once. So this file converts between places and columns.
 */
#include "proto/message_pb.h"

#include "proto/error.h"
#include "proto/name.h"
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

static const struct tensor_place *place_at(const struct tensor_place *first,
					   size_t step, size_t i)
{
	return (const void *)((const char *)first + i * step);
}

/* The lengths of the columns that do not have one entry for each place. */
struct widths {
	size_t n_dims; /* sum over all places */
	size_t n_strided;
	size_t n_strides;
	size_t names_size; /* 0: no place has a name */
	/* 0 if no place has a fence; else the number of places */
	size_t n_fences;
	/* 0 if no place is tainted; else the number of places */
	size_t n_taints;
};

static struct widths measure(const struct tensor_place *first, size_t step,
			     size_t n)
{
	struct widths widths = {0};
	bool is_named = false;

	for (size_t i = 0; i < n; i++) {
		const struct tensor_place *place = place_at(first, step, i);

		assert(place->type.n_dims <= TENSOR_MAX_DIMS);
		widths.n_dims += place->type.n_dims;
		if (!tensor_type_is_contiguous(&place->type)) {
			widths.n_strided++;
			widths.n_strides += place->type.n_dims;
		}
		if (place->name && place->name[0]) {
			is_named = true;
			widths.names_size += strlen(place->name);
		}
		if (place->fence.session)
			widths.n_fences = n;
		if (place->is_tainted)
			widths.n_taints = n;
	}
	widths.names_size = is_named ? widths.names_size + n : 0;
	return widths;
}

static bool allocate_columns(Fsdp__Places *pb, size_t n,
			     const struct widths *widths,
			     struct pb_arena *arena)
{
	pb->n_slot = pb->n_generation = pb->n_chunk = n;
	pb->n_offset = pb->n_size = pb->n_version = n;
	pb->dtype.len = pb->n_dims.len = n;
	pb->n_timeline_session = pb->n_timeline = pb->n_value =
		widths->n_fences;
	pb->is_tainted.len = widths->n_taints;
	pb->slot = pb_arena_alloc(arena, n, sizeof(*pb->slot));
	pb->generation = pb_arena_alloc(arena, n, sizeof(*pb->generation));
	pb->chunk = pb_arena_alloc(arena, n, sizeof(*pb->chunk));
	pb->offset = pb_arena_alloc(arena, n, sizeof(*pb->offset));
	pb->size = pb_arena_alloc(arena, n, sizeof(*pb->size));
	pb->version = pb_arena_alloc(arena, n, sizeof(*pb->version));
	pb->dtype.data = pb_arena_alloc(arena, n, 1);
	pb->n_dims.data = pb_arena_alloc(arena, n, 1);
	pb->shape = pb_arena_alloc(arena, widths->n_dims, sizeof(*pb->shape));
	pb->strided =
		pb_arena_alloc(arena, widths->n_strided, sizeof(*pb->strided));
	pb->strides =
		pb_arena_alloc(arena, widths->n_strides, sizeof(*pb->strides));
	pb->names.data = pb_arena_alloc(arena, widths->names_size, 1);
	pb->timeline_session = pb_arena_alloc(arena, widths->n_fences,
					      sizeof(*pb->timeline_session));
	pb->timeline =
		pb_arena_alloc(arena, widths->n_fences, sizeof(*pb->timeline));
	pb->value = pb_arena_alloc(arena, widths->n_fences, sizeof(*pb->value));
	pb->is_tainted.data = pb_arena_alloc(arena, widths->n_taints, 1);
	return pb->slot && pb->generation && pb->chunk && pb->offset &&
	       pb->size && pb->version && pb->dtype.data && pb->n_dims.data &&
	       pb->shape && pb->strided && pb->strides && pb->names.data &&
	       pb->timeline_session && pb->timeline && pb->value &&
	       pb->is_tainted.data;
}

static void put_type(Fsdp__Places *pb, size_t i, const struct tensor_type *type)
{
	size_t size = type->n_dims * sizeof(*type->shape);

	pb->dtype.data[i] = (uint8_t)type->dtype;
	pb->n_dims.data[i] = (uint8_t)type->n_dims;
	memcpy(pb->shape + pb->n_shape, type->shape, size);
	pb->n_shape += type->n_dims;
	if (tensor_type_is_contiguous(type))
		return;
	pb->strided[pb->n_strided++] = (uint32_t)i;
	memcpy(pb->strides + pb->n_strides, type->strides, size);
	pb->n_strides += type->n_dims;
}

static void put_name(Fsdp__Places *pb, const char *name)
{
	size_t size = name ? strlen(name) : 0;

	if (size > 0)
		memcpy(pb->names.data + pb->names.len, name, size);
	pb->names.len += size;
	pb->names.data[pb->names.len++] = 0;
}

static void put_fence(Fsdp__Places *pb, size_t i, const struct fence *fence)
{
	pb->timeline_session[i] = fence->session;
	pb->timeline[i] = fence->timeline;
	pb->value[i] = fence->value;
}

Fsdp__Places *places_build(const struct tensor_place *first, size_t step,
			   size_t n, struct pb_arena *arena)
{
	struct widths widths = measure(first, step, n);
	Fsdp__Places *pb = pb_arena_message(arena, &fsdp__places__descriptor);

	if (!pb || !allocate_columns(pb, n, &widths, arena))
		return NULL;
	for (size_t i = 0; i < n; i++) {
		const struct tensor_place *place = place_at(first, step, i);

		pb->slot[i] = place->ref.slot;
		pb->generation[i] = place->ref.generation;
		pb->chunk[i] = place->chunk;
		pb->offset[i] = place->offset;
		pb->size[i] = place->size;
		pb->version[i] = place->version;
		put_type(pb, i, &place->type);
		if (widths.names_size > 0)
			put_name(pb, place->name);
		if (widths.n_fences > 0)
			put_fence(pb, i, &place->fence);
		if (widths.n_taints > 0)
			pb->is_tainted.data[i] = place->is_tainted;
	}
	return pb;
}

static bool is_length(size_t length, size_t n)
{
	return length == 0 || length == n;
}

int places_count(const Fsdp__Places *pb, size_t max, size_t *ret_n,
		 struct error *err)
{
	size_t n, n_dims = 0;

	if (!pb)
		return error_set(err, -EPROTO, "the places are missing");
	n = pb->n_slot;
	if (n > max)
		return error_set(
			err, -E2BIG,
			"there are %zu places, but there can be at most %zu", n,
			max);
	if (pb->n_generation != n || pb->n_chunk != n || pb->n_offset != n ||
	    pb->n_size != n || pb->n_version != n || pb->dtype.len != n ||
	    pb->n_dims.len != n || !is_length(pb->n_timeline_session, n) ||
	    pb->n_timeline != pb->n_timeline_session ||
	    pb->n_value != pb->n_timeline_session ||
	    !is_length(pb->is_tainted.len, n))
		return error_set(err, -EPROTO,
				 "the columns of %zu places differ in length",
				 n);
	for (size_t i = 0; i < n; i++)
		n_dims += pb->n_dims.data[i];
	if (pb->n_shape != n_dims)
		return error_set(err, -EPROTO,
				 "places with %zu dimensions have %zu sizes",
				 n_dims, pb->n_shape);
	*ret_n = n;
	return 0;
}

static int take_type(const Fsdp__Places *pb, struct places_cursor *at,
		     struct tensor_type *ret, uint64_t *ret_span,
		     struct error *err)
{
	size_t i = at->i, n_dims = pb->n_dims.data[i];
	const int64_t *shape = pb->shape ? pb->shape + at->shape : NULL;
	const int64_t *strides = NULL;

	at->shape += n_dims;
	if (at->strided < pb->n_strided && pb->strided[at->strided] == i) {
		at->strided++;
		if (n_dims == 0 || n_dims > pb->n_strides - at->strides)
			return error_set(err, -EPROTO,
					 "the strides are missing");
		strides = pb->strides + at->strides;
		at->strides += n_dims;
	}
	return type_take(pb->dtype.data[i], n_dims, shape, strides, ret,
			 ret_span, err);
}

/* The caller maps memory by sums of offset and size, so these must not
 * overflow. */
static int take_extent(const Fsdp__Places *pb, size_t i, uint64_t span,
		       struct tensor_place *ret, struct error *err)
{
	int r = size_check(pb->offset[i], "offset", err);

	if (r == 0)
		r = size_check(pb->size[i], "size", err);
	if (r < 0)
		return r;
	ret->offset = pb->offset[i];
	ret->size = pb->size[i];
	if (span > ret->size || (ret->size > 0 && pb->chunk[i] == 0))
		return error_set(err, -EPROTO,
				 "a tensor of %" PRIu64 " bytes has %" PRIu64
				 " bytes in chunk %u",
				 span, ret->size, pb->chunk[i]);
	ret->chunk = pb->chunk[i];
	ret->version = pb->version[i];
	return 0;
}

static int take_next_name(struct places_cursor *at, const char **ret,
			  struct error *err)
{
	const char *name = at->names, *stop;

	*ret = "";
	if (!name)
		return 0;
	stop = memchr(name, 0, (size_t)(at->names_end - name));
	if (!stop)
		return error_set(err, -EPROTO, "its name is missing");
	at->names = stop + 1;
	*ret = name;
	return name[0] ? name_check(name, err) : 0;
}

struct places_cursor places_begin(const Fsdp__Places *pb)
{
	struct places_cursor at = {0};

	if (pb->names.len > 0) {
		at.names = (const char *)pb->names.data;
		at.names_end = at.names + pb->names.len;
	}
	return at;
}

static int take_fence(const Fsdp__Places *pb, size_t i, struct fence *ret,
		      struct error *err)
{
	*ret = (struct fence){0};
	if (pb->n_timeline_session == 0)
		return 0;
	if (!pb->timeline_session[i] != !pb->value[i])
		return error_set(err, -EPROTO,
				 "there is no value %" PRIu64
				 " of a timeline of "
				 "session %" PRIu64,
				 pb->value[i], pb->timeline_session[i]);
	*ret = (struct fence){pb->timeline_session[i], pb->timeline[i],
			      pb->value[i]};
	if (ret->session && !ret->timeline)
		return event_check(ret->value, err);
	return fence_check(ret->timeline, ret->value, err);
}

static int take_taint(const Fsdp__Places *pb, size_t i, bool *ret,
		      struct error *err)
{
	*ret = false;
	if (pb->is_tainted.len == 0)
		return 0;
	if (pb->is_tainted.data[i] > 1)
		return error_set(err, -EPROTO,
				 "a taint of %u is neither 0 nor 1",
				 pb->is_tainted.data[i]);
	*ret = pb->is_tainted.data[i] == 1;
	return 0;
}

static int take_place(const Fsdp__Places *pb, struct places_cursor *at,
		      struct tensor_place *ret, struct error *err)
{
	uint64_t span;
	int r;

	ret->ref = (struct slot_ref){pb->slot[at->i], pb->generation[at->i]};
	r = ref_check(ret->ref, err);
	if (r < 0)
		return r;
	r = take_type(pb, at, &ret->type, &span, err);
	if (r < 0)
		return r;
	r = take_extent(pb, at->i, span, ret, err);
	if (r < 0)
		return r;
	r = take_fence(pb, at->i, &ret->fence, err);
	if (r < 0)
		return r;
	r = take_taint(pb, at->i, &ret->is_tainted, err);
	if (r < 0)
		return r;
	return take_next_name(at, &ret->name, err);
}

int places_next(const Fsdp__Places *pb, struct places_cursor *at,
		struct tensor_place *ret, struct error *err)
{
	int r = take_place(pb, at, ret, err);

	if (r < 0)
		return error_wrap(err, r, "place %zu", at->i);
	at->i++;
	return 0;
}

int places_end(const Fsdp__Places *pb, const struct places_cursor *at,
	       struct error *err)
{
	if (at->strided != pb->n_strided || at->strides != pb->n_strides ||
	    at->names != at->names_end)
		return error_set(err, -EPROTO,
				 "there are more strides or names than places");
	return 0;
}

int places_take(const Fsdp__Places *pb, size_t step, struct room *room,
		struct tensor_place *ret_first, struct error *err)
{
	struct places_cursor at = places_begin(pb);

	if (at.names) {
		at.names = room_text(room, pb->names.data, pb->names.len);
		at.names_end = at.names + pb->names.len;
	}
	for (size_t i = 0; i < pb->n_slot; i++) {
		void *place = (char *)ret_first + i * step;
		int r = places_next(pb, &at, place, err);

		if (r < 0)
			return r;
	}
	return places_end(pb, &at, err);
}
