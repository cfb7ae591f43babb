#include "tests/fuzz/fill.h"
#include "proto/message_field.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/seen.h"
#include <stdlib.h>
#include <string.h>

/* From this byte on a choice is an odd one. */
#define ODD 240

#define COUNT(array) (sizeof(array) / sizeof(*(array)))

static const struct body *const bodies[MESSAGE_MAX + 1] = {
#define X(KIND, number, noun, action, request, reply, ...)                     \
	[number] = &body_##request##_request,
	MESSAGE_KINDS(X)
#undef X
};

/* The arrays of the request. */
static _Alignas(16) uint8_t memory[16384];
static size_t used;

static void *array_new(size_t size)
{
	void *array = memory + used;

	size = (size + 15) & ~(size_t)15;
	if (used + size > sizeof(memory))
		abort();
	memset(array, 0, size);
	used += size;
	return array;
}

/* --- numbers -------------------------------------------------------------- */

static uint64_t choose_size(struct input *input)
{
	static const uint64_t sizes[] = {
		64,       0,       1,    4096,     100, 65536, 2u << 20,
		1u << 20, 5 << 20, 4097, 33 << 20, 12,  8,     40 << 20};

	return sizes[input_below(input, COUNT(sizes))];
}

static uint64_t choose_time(struct input *input, enum field_check check)
{
	static const uint64_t timeouts[] = {0, UINT64_MAX, 50, 1, 60000};
	static const uint64_t ttls[] = {0, 60000, 1, 500, MESSAGE_MAX_TTL_MS};

	if (check == CHECK_TIMEOUT)
		return timeouts[input_below(input, COUNT(timeouts))];
	return ttls[input_below(input, COUNT(ttls))];
}

static uint64_t choose_in(struct input *input, const struct field *field)
{
	uint8_t byte = input_byte(input);

	if (byte >= ODD - 64 && byte < ODD)
		return seen_number(input, field->what);
	return field->min + byte % (field->max - field->min + 1);
}

/* A number without a rule: a count, a rank, a version, a cursor, a uid, or an
 * id that may also be 0. */
static uint64_t choose_any(struct input *input)
{
	static const char *const ids[] = {NULL, "group", "bundle", "session"};
	uint8_t byte = input_byte(input);

	if (byte < 160)
		return byte & 7;
	if (byte < 200)
		return seen_number(input, ids[(byte - 160) / 10]);
	if (byte < 220)
		return 1000 + (byte & 1);
	return choose_size(input);
}

static uint64_t choose_number(struct input *input, const struct field *field)
{
	if (input->at < input->end && *input->at >= ODD) {
		input_byte(input);
		return input_odd(input);
	}
	switch ((enum field_check)field->check) {
	case CHECK_IN:
		return choose_in(input, field);
	case CHECK_ID:
		return seen_number(input, field->what);
	case CHECK_SIZE:
		return choose_size(input);
	case CHECK_TTL:
	case CHECK_TIMEOUT:
		return choose_time(input, field->check);
	case CHECK_FLAGS:
		return input_byte(input) & field->max;
	case CHECK_DTYPE:
	case CHECK_DTYPE_OR_NONE:
		return input_below(input, DTYPE_MAX + 1);
	default:
		return choose_any(input);
	}
}

static void fill_number(struct input *input, const struct field *field,
			uint8_t *at)
{
	uint64_t wide = choose_number(input, field);
	uint32_t narrow = (uint32_t)wide;

	if (field->type == FIELD_64)
		memcpy(at, &wide, sizeof(wide));
	else
		memcpy(at, &narrow, sizeof(narrow));
}

/* --- structs -------------------------------------------------------------- */

static struct slot_ref choose_ref(struct input *input)
{
	struct slot_ref ref = seen_ref(input);

	if (input->at == input->end || *input->at < ODD)
		return ref;
	switch (input_below(input, 4)) {
	case 0:
		ref.slot = (uint32_t)input_odd(input);
		break;
	case 1:
		ref.generation = input_odd(input);
		break;
	case 2:
		ref.generation++;
		break;
	default:
		ref.slot++;
	}
	return ref;
}

static struct access_class choose_access(struct input *input)
{
	static const uint32_t modes[] = {0666, 0,    0600, 0644, 0660,
					 0640, 0604, 0777, 0200};
	static const uint32_t gids[] = {GID_DEFAULT, 1000, 0, 1001, 77};
	uint8_t byte = input_byte(input);

	return (struct access_class){
		.gid = gids[byte / COUNT(modes) % COUNT(gids)],
		.mode = modes[byte % COUNT(modes)],
	};
}

static struct tensor_type choose_type(struct input *input)
{
	static const uint32_t dtypes[] = {DTYPE_F32, DTYPE_U8,  DTYPE_BF16,
					  DTYPE_F16, DTYPE_F64, DTYPE_I64};
	uint8_t byte = input_byte(input);
	struct tensor_type type = {
		.dtype = dtypes[byte % COUNT(dtypes)],
		.n_dims = byte >= ODD ? byte % (TENSOR_MAX_DIMS + 1)
				      : 1 + (byte >> 6),
	};

	for (uint32_t i = 0; i < type.n_dims; i++)
		type.shape[i] = byte >= ODD ? (int64_t)input_odd(input)
				: i == 0    ? (int64_t)choose_size(input)
					    : 1 + input_below(input, 4);
	if (byte < ODD)
		tensor_type_contiguous(&type);
	else
		for (uint32_t i = 0; i < type.n_dims; i++)
			type.strides[i] = (int64_t)input_odd(input);
	return type;
}

static const char *choose_name(struct input *input, enum name_form form)
{
	static const char *const tensors[] = {
		"a/x", "m/w", "m/v", "a", "a/y", "b/c", "m/n/w", "c", "k/k"};
	static const char *const bundles[] = {"m/", "a/", "m/n/", "z/"};
	static const char *const odd[] = {"", "/", "a//b", "..", "m", "m/w/"};
	uint8_t byte = input_byte(input);

	if (byte >= ODD)
		return odd[byte % COUNT(odd)];
	if (form == NAME_OF_TENSOR_OR_NONE && byte % 4 == 0)
		return "";
	if (form == NAME_OF_BUNDLE || (form == NAME_OF_ANY && byte % 2))
		return bundles[byte / 2 % COUNT(bundles)];
	return tensors[byte / 2 % COUNT(tensors)];
}

/* --- arrays --------------------------------------------------------------- */

static uint32_t choose_count(struct input *input, const struct field *field,
			     uint8_t *ours)
{
	uint32_t n = field->min + input_below(input, 4);

	memcpy(ours + field->n, &n, sizeof(n));
	return n;
}

static void fill_body(struct input *input, const struct body *body,
		      uint8_t *ours);

static void fill_array(struct input *input, const struct field *field,
		       uint8_t *ours)
{
	uint32_t n = choose_count(input, field, ours);
	uint8_t *array = array_new(n * (size_t)field->size);

	memcpy(ours + field->at, &array, sizeof(array));
	for (uint32_t i = 0; i < n; i++, array += field->size) {
		const char *name;
		uint32_t number;
		double real;

		if (field->type == FIELD_ITEMS) {
			fill_body(input, field->items, array);
		} else if (field->type == FIELD_NAMES) {
			name = choose_name(input, field->check);
			memcpy(array, &name, sizeof(name));
		} else if (field->type == FIELD_KEYS) {
			memcpy(array, seen_key(input), field->size);
		} else if (field->size == sizeof(number)) {
			number = (uint32_t)seen_number(input, field->what);
			memcpy(array, &number, sizeof(number));
		} else {
			real = (double)input_odd(input) / 4;
			memcpy(array, &real, sizeof(real));
		}
	}
}

/* --- fields --------------------------------------------------------------- */

static void fill_device(struct input *input, const struct field *field,
			uint8_t *at)
{
	if (input_byte(input) >= ODD)
		memset(at, input_byte(input), field->size);
}

static void fill_handle(struct input *input, const struct field *field,
			uint8_t *at)
{
	uint8_t *handle;

	if (input_byte(input) < ODD)
		return;
	handle = array_new(field->size);
	memset(handle, input_byte(input), field->size);
	memcpy(at, &handle, sizeof(handle));
}

static void fill_text(struct input *input, uint8_t *at)
{
	static const char *const texts[] = {"", "a", "m/", "a/x", "no such"};
	const char *text = texts[input_below(input, COUNT(texts))];

	memcpy(at, &text, sizeof(text));
}

static void fill_name(struct input *input, const struct field *field,
		      uint8_t *at)
{
	const char *name = choose_name(input, field->check);

	memcpy(at, &name, sizeof(name));
}

static void fill_field(struct input *input, const struct field *field,
		       uint8_t *ours)
{
	uint8_t *at = ours + field->at;

	switch ((enum field_type)field->type) {
	case FIELD_BOOL:
		*(bool *)at = input_byte(input) & 1;
		break;
	case FIELD_32:
	case FIELD_64:
		fill_number(input, field, at);
		break;
	case FIELD_REF:
		*(struct slot_ref *)(void *)at = choose_ref(input);
		break;
	case FIELD_ACCESS:
		*(struct access_class *)(void *)at = choose_access(input);
		break;
	case FIELD_TYPE:
		*(struct tensor_type *)(void *)at = choose_type(input);
		break;
	case FIELD_DEVICE:
		fill_device(input, field, at);
		break;
	case FIELD_TEXT:
		fill_text(input, at);
		break;
	case FIELD_NAME:
		fill_name(input, field, at);
		break;
	case FIELD_BYTES:
		memcpy(at, seen_key(input), TICKET_SIZE);
		break;
	case FIELD_MAYBE_BYTES:
		*(bool *)(ours + field->n) = input_byte(input) >= ODD;
		break;
	case FIELD_HANDLE:
		fill_handle(input, field, at);
		break;
	default:
		fill_array(input, field, ours);
	}
}

static void fill_body(struct input *input, const struct body *body,
		      uint8_t *ours)
{
	for (size_t i = 0; i < body->n_fields; i++)
		fill_field(input, &body->fields[i], ours);
}

void fill_request(struct input *input, uint16_t kind, struct request *ret)
{
	used = 0;
	memset(ret, 0, sizeof(*ret));
	ret->kind = kind;
	fill_body(input, bodies[kind], (uint8_t *)&ret->hello);
}
