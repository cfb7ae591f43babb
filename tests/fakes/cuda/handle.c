/*
 * Handles: a table of objects with generations. A handle consists, from the
 * top, of 8 bits that make it an address that no CPU accepts, 8 bits of kind,
 * 24 of generation, and 24 of index.
 */
#include "tests/fakes/cuda/handle.h"
#include "tests/fakes/cuda/settings.h"
#include <stdlib.h>

#define TOP        UINT64_C(0xfa)
#define INDEX_BITS 24
#define INDEX_MASK ((UINT64_C(1) << INDEX_BITS) - 1)

struct slot {
	void *object; /* NULL if free */
	uint32_t generation;
	uint32_t next_free; /* 0 at the end of the list; slot 0 is not used */
};

static struct slot *slots;
static uint32_t n_slots, n_used; /* slots from n_used on were never used */
static uint32_t first_free;
static unsigned int n_handles[N_HANDLE_KINDS];

static uint64_t encode(enum handle_kind kind, uint32_t index)
{
	return TOP << 56 | (uint64_t)kind << 48 |
	       (slots[index].generation & INDEX_MASK) << INDEX_BITS | index;
}

static void grow(void)
{
	uint32_t n = n_slots ? n_slots * 2 : 64;
	struct slot *more = NULL;

	if (n <= INDEX_MASK)
		more = realloc(slots, n * sizeof(*slots));
	if (!more)
		settings_refuse("no room for %u handles", n);
	slots = more;
	n_slots = n;
}

uint64_t handle_new(enum handle_kind kind, void *object)
{
	uint32_t index = first_free;

	if (index) {
		first_free = slots[index].next_free;
	} else {
		if (n_used + 1 >= n_slots)
			grow();
		index = ++n_used;
		slots[index] = (struct slot){0};
	}
	slots[index].object = object;
	slots[index].generation++;
	n_handles[kind]++;
	return encode(kind, index);
}

void *handle_find(enum handle_kind kind, uint64_t handle)
{
	uint32_t index = handle & INDEX_MASK;

	if (index == 0 || index > n_used || !slots[index].object ||
	    encode(kind, index) != handle)
		return NULL;
	return slots[index].object;
}

void handle_free(enum handle_kind kind, uint64_t handle)
{
	uint32_t index = handle & INDEX_MASK;

	if (!handle_find(kind, handle))
		return;
	slots[index].object = NULL;
	slots[index].next_free = first_free;
	first_free = index;
	n_handles[kind]--;
}

unsigned int handle_count(enum handle_kind kind)
{
	return n_handles[kind];
}
