#include "tests/fuzz/seen.h"
#include "tests/fuzz/input.h"
#include <string.h>

/* Rings: old entries are overwritten. */
#define N_NUMBERS 64
#define N_REFS    32
#define N_KEYS    16
/* The number of items of a list that are remembered. */
#define N_ITEMS 4

struct number {
	uint64_t value;
	const char *what; /* NULL: unknown */
};

static struct number numbers[N_NUMBERS];
static struct slot_ref refs[N_REFS];
static uint8_t keys[N_KEYS][TICKET_SIZE];
static uint32_t n_numbers, n_refs, n_keys;

static const struct body *const bodies[MESSAGE_MAX + 1] = {
#define X(KIND, number, noun, action, request, reply, ...)                     \
	[number] = &body_##reply##_reply,
	MESSAGE_KINDS(X)
#undef X
};

void seen_clear(void)
{
	n_numbers = n_refs = n_keys = 0;
	memset(keys, 0, sizeof(keys));
}

/* --- remembering ---------------------------------------------------------- */

static void add_number(uint64_t value, const char *what)
{
	if (value)
		numbers[n_numbers++ % N_NUMBERS] = (struct number){value, what};
}

static void add_ref(const struct slot_ref *ref)
{
	for (uint32_t i = 0; i < n_refs && i < N_REFS; i++) {
		if (refs[i].slot == ref->slot &&
		    refs[i].generation == ref->generation)
			return;
	}
	if (ref->slot)
		refs[n_refs++ % N_REFS] = *ref;
}

static void add_places(const uint8_t *at, uint32_t n, size_t size)
{
	for (uint32_t i = 0; i < n && i < N_ITEMS; i++, at += size) {
		const struct tensor_place *place = (const void *)at;

		add_ref(&place->ref);
		add_number(place->chunk, "chunks");
		add_number(place->version, NULL);
		add_number(place->fence.session, "session");
	}
}

static void add_body(const struct body *body, const uint8_t *ours);

static void add_items(const struct body *body, const uint8_t *at, uint32_t n)
{
	for (uint32_t i = 0; at && i < n && i < N_ITEMS; i++)
		add_body(body, at + i * body->size);
}

static uint64_t number_of(const struct field *field, const uint8_t *at)
{
	uint64_t wide;
	uint32_t narrow;

	if (field->type == FIELD_64) {
		memcpy(&wide, at, sizeof(wide));
		return wide;
	}
	memcpy(&narrow, at, sizeof(narrow));
	return narrow;
}

static uint32_t count_of(const struct field *field, const uint8_t *ours)
{
	uint32_t n = 1;

	if (field->n != NO_COUNT)
		memcpy(&n, ours + field->n, sizeof(n));
	return n;
}

static const uint8_t *array_of(const uint8_t *at)
{
	const uint8_t *array;

	memcpy(&array, at, sizeof(array));
	return array;
}

static void add_field(const struct field *field, const uint8_t *ours)
{
	const uint8_t *at = ours + field->at;

	switch ((enum field_type)field->type) {
	case FIELD_32:
	case FIELD_64:
		add_number(number_of(field, at), field->what);
		break;
	case FIELD_REF:
		add_ref((const struct slot_ref *)(const void *)at);
		break;
	case FIELD_BYTES:
		if (field->size == TICKET_SIZE)
			memcpy(keys[n_keys++ % N_KEYS], at, TICKET_SIZE);
		break;
	case FIELD_ITEMS:
		add_items(field->items, array_of(at), count_of(field, ours));
		break;
	case FIELD_PLACES:
	case FIELD_PLACES_IN_ITEMS:
		add_places(array_of(at), count_of(field, ours), field->size);
		break;
	case FIELD_PLACES_HERE:
		add_places(at, count_of(field, ours), field->size);
		break;
	default:
		break;
	}
}

static void add_body(const struct body *body, const uint8_t *ours)
{
	for (size_t i = 0; i < body->n_fields; i++)
		add_field(&body->fields[i], ours);
}

void seen_reply(const struct reply *reply)
{
	add_body(bodies[reply->kind], (const uint8_t *)&reply->hello);
}

/* --- choosing ------------------------------------------------------------- */

uint64_t seen_number(struct input *input, const char *what)
{
	uint32_t n = n_numbers < N_NUMBERS ? n_numbers : N_NUMBERS;
	uint32_t left = input_below(input, 8);
	uint64_t value = 0;

	/* The newest comes first. */
	for (uint32_t i = 1; i <= n; i++) {
		const struct number *number =
			&numbers[(n_numbers - i) % N_NUMBERS];

		if (what && (!number->what || strcmp(number->what, what) != 0))
			continue;
		value = number->value;
		if (left-- == 0)
			break;
	}
	return value;
}

struct slot_ref seen_ref(struct input *input)
{
	uint32_t n = n_refs < N_REFS ? n_refs : N_REFS;
	uint8_t byte = input_byte(input);

	if (n == 0)
		return (struct slot_ref){1, 1};
	return refs[(n_refs - 1 - byte % n) % N_REFS];
}

const uint8_t *seen_key(struct input *input)
{
	uint32_t n = n_keys < N_KEYS ? n_keys : N_KEYS;
	uint8_t byte = input_byte(input);

	return keys[n ? (n_keys - 1 - byte % n) % N_KEYS : 0];
}
