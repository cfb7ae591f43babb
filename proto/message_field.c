/*
 * The interpreter of the tables of fields, which converts between our structs
 * and those of protobuf-c.
 *
 * A body is decoded in two passes. The first pass computes the size of its
 * arrays and texts, which get one allocation, and the second pass fills them.
 * Encoding borrows from our struct where possible.
 */
#include "proto/message_field.h"

#include "proto/error.h"
#include "proto/name.h"
#include <inttypes.h>
#include <string.h>

/* The form of all repeated fields in protobuf-c's structs. */
struct repeated {
	size_t n;
	void *data;
};

/* The memory that a decoded body needs. */
struct need {
	bool is_some;
	size_t arrays_size;
	size_t n_texts;
};

static const void *read_pointer(const void *at)
{
	const void *pointer;

	memcpy(&pointer, at, sizeof(pointer));
	return pointer;
}

static void write_pointer(void *at, const void *pointer)
{
	memcpy(at, &pointer, sizeof(pointer));
}

static const ProtobufCBinaryData *bytes_of(const struct field *f,
					   const void *pb)
{
	return (const void *)((const char *)pb + f->pb);
}

static const struct repeated *repeated_of(const struct field *f, const void *pb)
{
	return (const void *)((const char *)pb + f->pb);
}

static uint32_t count_of(const struct field *f, const void *ours)
{
	uint32_t n;

	memcpy(&n, (const char *)ours + f->n, sizeof(n));
	return n;
}

static void set_count(const struct field *f, void *ours, size_t n)
{
	uint32_t count = (uint32_t)n;

	memcpy((char *)ours + f->n, &count, sizeof(count));
}

static size_t round_up(size_t size)
{
	return (size + 7) & ~(size_t)7;
}

/* Returns whether the field is used, given the fields above it. */
static bool is_open(const struct field *f, const void *ours)
{
	const char *at = (const char *)ours + f->gate_at;
	const char *text;

	switch (f->gate) {
	case GATE_IF_TRUE:
		return *(const bool *)at;
	case GATE_UNLESS_TRUE:
		return !*(const bool *)at;
	case GATE_IF_NUMBER:
		return *(const uint64_t *)(const void *)at != 0;
	case GATE_UNLESS_TEXT:
		text = read_pointer(at);
		return !text || !text[0];
	default:
		return true;
	}
}

/* --- checks of one value ------------------------------------------------- */

static int check_count(const struct field *f, size_t n, struct error *err)
{
	if (n < f->min)
		return error_set(err, -EINVAL, "there are no %s", f->what);
	if (n > f->max)
		return error_set(err, -E2BIG,
				 "%zu %s are too many for one message, which "
				 "can have %u",
				 n, f->what, f->max);
	return 0;
}

static int check_flags(const struct field *f, uint32_t flags, struct error *err)
{
	if (flags & ~f->max)
		return error_set(
			err, -EINVAL,
			"flags %#x are unknown; the known flags are %#x",
			flags & ~f->max, f->max);
	if ((flags & f->max & PUBLISH_MUST_EXIST) && !(flags & PUBLISH_REPLACE))
		return error_set(err, -EINVAL,
				 "the flag \"must exist\" is given without "
				 "\"replace\"");
	return 0;
}

static int check_timeout(int32_t timeout_ms, struct error *err)
{
	if (timeout_ms < -1)
		return error_set(err, -EINVAL,
				 "the time-out is %d ms, but must be -1 (for "
				 "ever) or more",
				 timeout_ms);
	return 0;
}

static int check_ttl(uint64_t ttl_ms, struct error *err)
{
	if (ttl_ms > MESSAGE_MAX_TTL_MS)
		return error_set(err, -EINVAL,
				 "the time to live is %" PRIu64
				 " ms, but can be at most %" PRIu64
				 " (0: for ever)",
				 ttl_ms, MESSAGE_MAX_TTL_MS);
	return 0;
}

static int check_number(const struct field *f, uint64_t n, struct error *err)
{
	int code = f->code ? f->code : -EINVAL;

	switch (f->check) {
	case CHECK_IN:
		if (n < f->min || n > f->max)
			return error_set(err, code, "there is no %s %" PRIu64,
					 f->what, n);
		return 0;
	case CHECK_ID:
		if (n == 0)
			return error_set(err, code,
					 "the number of its %s is missing",
					 f->what);
		return 0;
	case CHECK_SIZE:
		return size_check(n, f->what, err);
	case CHECK_TTL:
		return check_ttl(n, err);
	case CHECK_TIMEOUT:
		return check_timeout((int32_t)n, err);
	case CHECK_FLAGS:
		return check_flags(f, (uint32_t)n, err);
	case CHECK_DTYPE:
	case CHECK_DTYPE_OR_NONE:
		if (dtype_size((uint32_t)n) == 0 &&
		    (n || f->check == CHECK_DTYPE))
			return error_set(err, -EINVAL,
					 "there is no dtype %" PRIu64, n);
		return 0;
	case CHECK_EVENT:
		return event_check(n, err);
	default:
		return 0;
	}
}

/* --- what is needed ------------------------------------------------------ */

static size_t texts_per_item(const struct body *items)
{
	size_t n = 0;

	for (size_t i = 0; i < items->n_fields; i++) {
		uint8_t type = items->fields[i].type;

		n += type == FIELD_TEXT || type == FIELD_NAME ||
		     type == FIELD_HANDLE;
	}
	return n;
}

static size_t column_length(const struct field *column, const void *pb)
{
	return column->type == FIELD_BYTE_COLUMN ? bytes_of(column, pb)->len
						 : repeated_of(column, pb)->n;
}

static int need_array(const struct field *f, size_t n, struct need *need,
		      struct error *err)
{
	int r = check_count(f, n, err);

	need->is_some = true;
	need->arrays_size += round_up(n * f->size);
	return r;
}

static int need_columns(const struct field *f, const void *pb,
			struct need *need, struct error *err)
{
	const struct field *columns = f->items->fields;
	size_t n = column_length(&columns[0], pb);
	int r = need_array(f, n, need, err);

	for (size_t i = 1; r == 0 && i < f->items->n_fields; i++) {
		if (column_length(&columns[i], pb) != n)
			return error_set(err, -EPROTO,
					 "the columns of %zu %s differ in "
					 "length",
					 n, f->what);
	}
	return r;
}

static int need_keys(const struct field *f, const void *pb, struct need *need,
		     struct error *err)
{
	size_t size = bytes_of(f, pb)->len;

	if (size % f->size != 0)
		return error_set(
			err, -EINVAL,
			"%zu bytes are not a whole number of %s, which "
			"have %u bytes each",
			size, f->what, f->size);
	return need_array(f, size / f->size, need, err);
}

static int need_places(const struct field *f, const void *pb, struct need *need,
		       struct error *err)
{
	const Fsdp__Places *places = read_pointer((const char *)pb + f->pb);
	size_t n;
	int r = places_count(places, f->max, &n, err);

	if (r < 0)
		return r;
	if (n < f->min)
		return error_set(err, -EPROTO,
				 "there are %zu places instead of %u", n,
				 f->min);
	need->is_some = true;
	need->n_texts++;
	if (f->type == FIELD_PLACES)
		need->arrays_size += round_up(n * f->size);
	return 0;
}

static int need_field(const struct field *f, const void *pb, struct need *need,
		      struct error *err)
{
	size_t n;

	switch (f->type) {
	case FIELD_TEXT:
	case FIELD_NAME:
		need->is_some = true;
		need->n_texts++;
		return 0;
	case FIELD_NAMES:
	case FIELD_NUMBERS:
	case FIELD_ITEMS:
		n = repeated_of(f, pb)->n;
		if (f->type == FIELD_ITEMS)
			need->n_texts += n * texts_per_item(f->items);
		else if (f->type == FIELD_NAMES)
			need->n_texts += n;
		return need_array(f, n, need, err);
	case FIELD_KEYS:
		return need_keys(f, pb, need, err);
	case FIELD_COLUMNS:
		return need_columns(f, pb, need, err);
	case FIELD_PLACES:
	case FIELD_PLACES_HERE:
	case FIELD_PLACES_IN_ITEMS:
		return need_places(f, pb, need, err);
	default:
		return 0;
	}
}

/* --- from protobuf ------------------------------------------------------- */

static int take_fields(const struct body *body, const void *pb,
		       struct room *room, void *to, struct error *err);

static int take_number(const struct field *f, const void *pb, void *to,
		       struct error *err)
{
	const void *from = (const char *)pb + f->pb;
	size_t size = f->type == FIELD_64 ? sizeof(uint64_t) : sizeof(uint32_t);
	uint64_t n = 0;

	memcpy(&n, from, size); /* as the CPU is little-endian (frame.c) */
	memcpy(to, &n, size);
	return check_number(f, n, err);
}

static int take_ref(const struct field *f, const void *pb, struct slot_ref *to,
		    struct error *err)
{
	memcpy(&to->slot, (const char *)pb + f->pb, sizeof(to->slot));
	memcpy(&to->generation, (const char *)pb + f->pb2,
	       sizeof(to->generation));
	return ref_check(*to, err);
}

static int take_access(const struct field *f, const void *pb,
		       struct access_class *to, struct error *err)
{
	memcpy(&to->gid, (const char *)pb + f->pb, sizeof(to->gid));
	memcpy(&to->mode, (const char *)pb + f->pb2, sizeof(to->mode));
	if (to->mode == 0)
		to->mode = 0600;
	if ((to->mode & ~0666u) != 0 || (to->mode & 0600) != 0600)
		return error_set(err, -EINVAL,
				 "mode %#o is not one of 0600 to 0666; the "
				 "owner always reads and writes",
				 to->mode);
	return 0;
}

/* There must be no strides, or one for each dimension. */
static int take_type(const struct field *f, const void *pb,
		     struct tensor_type *to, struct error *err)
{
	const struct repeated *shape =
		(const void *)((const char *)pb + f->pb2);
	const struct repeated *strides =
		(const void *)((const char *)pb + f->strides);
	size_t n_strides = f->strides ? strides->n : 0;
	uint32_t dtype;
	uint64_t span;

	if (n_strides != 0 && n_strides != shape->n)
		return error_set(err, -EINVAL,
				 "there are %zu strides for %zu dimensions",
				 n_strides, shape->n);
	memcpy(&dtype, (const char *)pb + f->pb, sizeof(dtype));
	return type_take(dtype, shape->n, shape->data,
			 n_strides ? strides->data : NULL, to, &span, err);
}

static int check_name(const char *name, enum name_form form, struct error *err)
{
	if (form == NAME_OF_TENSOR_OR_NONE && !name[0])
		return 0;
	if (form == NAME_OF_BUNDLE ||
	    (form == NAME_OF_ANY && name_is_bundle(name)))
		return name_check_bundle(name, err);
	return name_check(name, err);
}

static int take_text(const struct field *f, ProtobufCBinaryData bytes,
		     struct room *room, void *to, struct error *err)
{
	bool is_name = f->type != FIELD_TEXT;
	uint32_t max_size = is_name ? NAME_MAX_SIZE : f->max;
	const char *what = is_name ? "name" : f->what;
	const char *text;

	if (bytes.len > max_size)
		return error_set(
			err, -ENAMETOOLONG,
			"the %s has %zu bytes, but can have at most %u", what,
			bytes.len, max_size);
	if (bytes.len > 0 && memchr(bytes.data, 0, bytes.len))
		return error_set(err, -EINVAL, "the %s contains a 0 byte",
				 what);
	text = room_text(room, bytes.data, bytes.len);
	write_pointer(to, text);
	return is_name ? check_name(text, f->check, err) : 0;
}

/* Copies bytes, which must have the full size. Some types also allow no
 * bytes. */
static int take_bytes(const struct field *f, ProtobufCBinaryData bytes,
		      struct room *room, void *ours, struct error *err)
{
	void *to = (char *)ours + f->at;

	if (bytes.len == 0 && f->type != FIELD_BYTES)
		return 0;
	if (bytes.len != f->size)
		return error_set(err, -EINVAL,
				 "the %s has %zu bytes; it needs %u", f->what,
				 bytes.len, f->size);
	if (f->type == FIELD_HANDLE) {
		write_pointer(to, room_text(room, bytes.data, bytes.len));
		return 0;
	}
	memcpy(to, bytes.data, bytes.len);
	if (f->type == FIELD_MAYBE_BYTES)
		*(bool *)((char *)ours + f->n) = true;
	return 0;
}

/* Makes an array of `n` elements, and returns it. */
static void *take_array(const struct field *f, size_t n, struct room *room,
			void *ours)
{
	void *array = room_array(room, round_up(n * f->size));

	set_count(f, ours, n);
	write_pointer((char *)ours + f->at, array);
	return array;
}

static int take_names(const struct field *f, const struct repeated *names,
		      struct room *room, void *ours, struct error *err)
{
	const ProtobufCBinaryData *from = names->data;
	char *to = take_array(f, names->n, room, ours);

	for (size_t i = 0; i < names->n; i++) {
		int r = take_text(f, from[i], room, to + i * f->size, err);

		if (r < 0)
			return error_wrap(err, r, "names[%zu]", i);
	}
	return 0;
}

/* Copies `n` numbers or keys. */
static void take_copy(const struct field *f, const void *from, size_t n,
		      struct room *room, void *ours)
{
	void *to = take_array(f, n, room, ours);

	if (n > 0)
		memcpy(to, from, n * f->size);
}

static int take_items(const struct field *f, const struct repeated *items,
		      struct room *room, void *ours, struct error *err)
{
	void *const *from = items->data;
	char *to = take_array(f, items->n, room, ours);

	for (size_t i = 0; i < items->n; i++) {
		int r = take_fields(f->items, from[i], room, to + i * f->size,
				    err);

		if (r < 0)
			return f->label ? error_wrap(err, r, "%s[%zu]",
						     f->label, i)
					: r;
	}
	return 0;
}

/* Takes one value of a column. */
static int take_cell(const struct field *column, const void *pb, size_t i,
		     char *item, struct error *err)
{
	const uint64_t *data = repeated_of(column, pb)->data;
	bool is_byte = column->type == FIELD_BYTE_COLUMN;
	uint64_t n = is_byte ? bytes_of(column, pb)->data[i] : data[i];

	memcpy(item + column->at, &n,
	       is_byte ? sizeof(uint32_t) : sizeof(uint64_t));
	return check_number(column, n, err);
}

static int take_columns(const struct field *f, const void *pb,
			struct room *room, void *ours, struct error *err)
{
	const struct body *items = f->items;
	size_t n = column_length(&items->fields[0], pb);
	char *to = take_array(f, n, room, ours);
	int r = 0;

	memset(to, 0, n * f->size);
	for (size_t i = 0; i < n; i++, to += f->size) {
		for (size_t k = 0; r == 0 && k < items->n_fields; k++)
			r = take_cell(&items->fields[k], pb, i, to, err);
		if (r == 0)
			r = items->check(to, err);
		if (r < 0)
			return error_wrap(err, r, "%s[%zu]", f->label, i);
	}
	return 0;
}

static int take_places(const struct field *f, const void *pb, struct room *room,
		       void *ours, struct error *err)
{
	const Fsdp__Places *places = read_pointer((const char *)pb + f->pb);
	size_t n = places->n_slot;
	void *to = (char *)ours + f->at;

	if (f->type == FIELD_PLACES) {
		to = take_array(f, n, room, ours);
	} else if (f->type == FIELD_PLACES_IN_ITEMS) {
		if (count_of(f, ours) != n)
			return error_set(err, -EPROTO,
					 "there are %u items for %zu places",
					 count_of(f, ours), n);
		to = (void *)(uintptr_t)read_pointer(to);
	} else if (f->n != NO_COUNT) {
		set_count(f, ours, n);
	}
	return places_take(places, f->size, room, to, err);
}

static int take_field(const struct field *f, const void *pb, struct room *room,
		      void *ours, struct error *err)
{
	const void *from = (const char *)pb + f->pb;
	void *to = (char *)ours + f->at;

	switch (f->type) {
	case FIELD_BOOL:
		*(bool *)to = *(const protobuf_c_boolean *)from;
		return 0;
	case FIELD_32:
	case FIELD_64:
		return take_number(f, pb, to, err);
	case FIELD_REF:
		return take_ref(f, pb, to, err);
	case FIELD_ACCESS:
		return take_access(f, pb, to, err);
	case FIELD_TYPE:
		return take_type(f, pb, to, err);
	case FIELD_TEXT:
	case FIELD_NAME:
		return take_text(f, *bytes_of(f, pb), room, to, err);
	case FIELD_NAMES:
		return take_names(f, repeated_of(f, pb), room, ours, err);
	case FIELD_NUMBERS:
		take_copy(f, repeated_of(f, pb)->data, repeated_of(f, pb)->n,
			  room, ours);
		return 0;
	case FIELD_KEYS:
		take_copy(f, bytes_of(f, pb)->data,
			  bytes_of(f, pb)->len / f->size, room, ours);
		return 0;
	case FIELD_ITEMS:
		return take_items(f, repeated_of(f, pb), room, ours, err);
	case FIELD_COLUMNS:
		return take_columns(f, pb, room, ours, err);
	case FIELD_PLACES:
	case FIELD_PLACES_HERE:
	case FIELD_PLACES_IN_ITEMS:
		return take_places(f, pb, room, ours, err);
	default:
		return take_bytes(f, *bytes_of(f, pb), room, ours, err);
	}
}

static int take_fields(const struct body *body, const void *pb,
		       struct room *room, void *to, struct error *err)
{
	memset(to, 0, body->size);
	for (size_t i = 0; i < body->n_fields; i++) {
		const struct field *f = &body->fields[i];
		int r = is_open(f, to) ? take_field(f, pb, room, to, err) : 0;

		if (r < 0)
			return f->label && f->type != FIELD_ITEMS &&
					       f->type != FIELD_COLUMNS
				       ? error_wrap(err, r, "%s", f->label)
				       : r;
	}
	return body->check ? body->check(to, err) : 0;
}

int body_take(const struct body *body, const void *pb, struct room *room,
	      void *to, struct error *err)
{
	struct need need = {0};
	int r = 0;

	for (size_t i = 0; r == 0 && i < body->n_fields; i++)
		r = need_field(&body->fields[i], pb, &need, err);
	if (r == 0 && need.is_some)
		r = room_open(room, need.arrays_size, need.n_texts, err);
	return r == 0 ? take_fields(body, pb, room, to, err) : r;
}

/* --- to protobuf --------------------------------------------------------- */

static bool put_fields(const struct body *body, const void *from, void *pb,
		       struct pb_arena *arena);

static ProtobufCBinaryData borrow(const void *data, size_t size)
{
	return (ProtobufCBinaryData){size, (uint8_t *)(uintptr_t)data};
}

/* NULL means "". */
static ProtobufCBinaryData borrow_text(const char *text)
{
	return borrow(text, text ? strlen(text) : 0);
}

static ProtobufCBinaryData bytes_for(const struct field *f, const void *ours)
{
	const void *from = (const char *)ours + f->at;
	const bool *has = (const void *)((const char *)ours + f->n);

	switch (f->type) {
	case FIELD_DEVICE:
		return borrow(from, device_uuid_is_host(from) ? 0 : f->size);
	case FIELD_MAYBE_BYTES:
		return borrow(from, *has ? f->size : 0);
	case FIELD_HANDLE:
		from = read_pointer(from);
		return borrow(from, from ? f->size : 0);
	case FIELD_KEYS:
		return borrow(read_pointer(from),
			      (size_t)count_of(f, ours) * f->size);
	case FIELD_BYTES:
		return borrow(from, f->size);
	default:
		return borrow_text(read_pointer(from));
	}
}

static void put_type(const struct field *f, const struct tensor_type *type,
		     void *pb)
{
	struct repeated shape = {type->n_dims, (void *)(uintptr_t)type->shape};
	struct repeated strides = {type->n_dims,
				   (void *)(uintptr_t)type->strides};

	memcpy((char *)pb + f->pb, &type->dtype, sizeof(type->dtype));
	memcpy((char *)pb + f->pb2, &shape, sizeof(shape));
	if (f->strides && !tensor_type_is_contiguous(type))
		memcpy((char *)pb + f->strides, &strides, sizeof(strides));
}

static void *build_names(const char *const *names, size_t n,
			 struct pb_arena *arena)
{
	ProtobufCBinaryData *pb = pb_arena_alloc(arena, n, sizeof(*pb));

	for (size_t i = 0; pb && i < n; i++)
		pb[i] = borrow_text(names[i]);
	return pb;
}

static void *build_items(const struct field *f, const char *items, size_t n,
			 struct pb_arena *arena)
{
	void **pb = pb_arena_messages(arena, f->items->descriptor, n);

	for (size_t i = 0; pb && i < n; i++) {
		if (!put_fields(f->items, items + i * f->size, pb[i], arena))
			return NULL;
	}
	return pb;
}

static bool put_array(const struct field *f, const void *ours, void *pb,
		      struct pb_arena *arena)
{
	const void *from = read_pointer((const char *)ours + f->at);
	struct repeated array = {count_of(f, ours), (void *)(uintptr_t)from};

	if (f->type == FIELD_NAMES)
		array.data = build_names(from, array.n, arena);
	else if (f->type == FIELD_ITEMS)
		array.data = build_items(f, from, array.n, arena);
	memcpy((char *)pb + f->pb, &array, sizeof(array));
	return array.data || array.n == 0;
}

static bool put_column(const struct field *column, const char *items,
		       size_t size, size_t n, void *pb, struct pb_arena *arena)
{
	size_t width = column->type == FIELD_BYTE_COLUMN ? 1 : 8;
	/* Both types of columns have a size and a pointer, as struct
	 * repeated. */
	struct repeated to = {n, pb_arena_alloc(arena, n, width)};
	uint8_t *data = to.data;

	if (!data)
		return false;
	for (size_t i = 0; i < n; i++, items += size)
		memcpy(data + i * width, items + column->at, width);
	memcpy((char *)pb + column->pb, &to, sizeof(to));
	return true;
}

static bool put_columns(const struct field *f, const void *ours, void *pb,
			struct pb_arena *arena)
{
	const char *items = read_pointer((const char *)ours + f->at);
	bool is_done = true;

	for (size_t i = 0; is_done && i < f->items->n_fields; i++)
		is_done = put_column(&f->items->fields[i], items, f->size,
				     count_of(f, ours), pb, arena);
	return is_done;
}

static bool put_places(const struct field *f, const void *ours, void *pb,
		       struct pb_arena *arena)
{
	const void *first = (const char *)ours + f->at;
	size_t n = f->n == NO_COUNT ? 1 : count_of(f, ours);

	if (f->type != FIELD_PLACES_HERE)
		first = read_pointer(first);
	first = places_build(first, f->size, n, arena);
	write_pointer((char *)pb + f->pb, first);
	return first;
}

static bool put_field(const struct field *f, const void *ours, void *pb,
		      struct pb_arena *arena)
{
	const void *from = (const char *)ours + f->at;
	void *to = (char *)pb + f->pb;
	const struct slot_ref *ref = from;
	const struct access_class *access = from;

	switch (f->type) {
	case FIELD_BOOL:
		*(protobuf_c_boolean *)to = *(const bool *)from;
		return true;
	case FIELD_32:
		memcpy(to, from, sizeof(uint32_t));
		return true;
	case FIELD_64:
		memcpy(to, from, sizeof(uint64_t));
		return true;
	case FIELD_REF:
		memcpy(to, &ref->slot, sizeof(ref->slot));
		memcpy((char *)pb + f->pb2, &ref->generation,
		       sizeof(ref->generation));
		return true;
	case FIELD_ACCESS:
		memcpy(to, &access->gid, sizeof(access->gid));
		memcpy((char *)pb + f->pb2, &access->mode,
		       sizeof(access->mode));
		return true;
	case FIELD_TYPE:
		put_type(f, from, pb);
		return true;
	case FIELD_NAMES:
	case FIELD_NUMBERS:
	case FIELD_ITEMS:
		return put_array(f, ours, pb, arena);
	case FIELD_COLUMNS:
		return put_columns(f, ours, pb, arena);
	case FIELD_PLACES:
	case FIELD_PLACES_HERE:
	case FIELD_PLACES_IN_ITEMS:
		return put_places(f, ours, pb, arena);
	default:
		*(ProtobufCBinaryData *)to = bytes_for(f, ours);
		return true;
	}
}

static bool put_fields(const struct body *body, const void *from, void *pb,
		       struct pb_arena *arena)
{
	for (size_t i = 0; i < body->n_fields; i++) {
		const struct field *f = &body->fields[i];

		if (is_open(f, from) && !put_field(f, from, pb, arena))
			return false;
	}
	return true;
}

void *body_build(const struct body *body, const void *from,
		 struct pb_arena *arena)
{
	void *pb = pb_arena_message(arena, body->descriptor);

	return pb && put_fields(body, from, pb, arena) ? pb : NULL;
}
