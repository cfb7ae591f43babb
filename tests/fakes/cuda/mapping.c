/* The table of mappings. It has pointers, sorted by address; the ranges do not
 * overlap. */
#include "tests/fakes/cuda/mapping.h"
#include "tests/fakes/cuda/context.h"
#include "tests/fakes/cuda/stream.h"
#include <stdlib.h>
#include <string.h>

static struct mapping **mappings;
static unsigned int n_mappings, n_room;
static uint64_t last_buffer_id;
static uint64_t clock_now;

/* Returns how many mappings begin at or below the address. */
static unsigned int rank(uint64_t address)
{
	unsigned int low = 0, high = n_mappings, middle;

	while (low < high) {
		middle = (low + high) / 2;
		if (mappings[middle]->address <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

struct mapping *mapping_find(uint64_t address)
{
	unsigned int n = rank(address);

	if (n == 0 ||
	    address - mappings[n - 1]->address >= mappings[n - 1]->size)
		return NULL;
	return mappings[n - 1];
}

struct mapping *mapping_next(const struct mapping *mapping)
{
	unsigned int n = mapping ? rank(mapping->address) : 0;

	return n < n_mappings ? mappings[n] : NULL;
}

bool mapping_overlaps(uint64_t address, uint64_t size)
{
	unsigned int n = rank(address);

	return mapping_find(address) ||
	       (n < n_mappings && mappings[n]->address - address < size);
}

static bool grow(void)
{
	unsigned int n = n_room ? n_room * 2 : 64;
	struct mapping **more = realloc(mappings, n * sizeof(*mappings));

	if (!more)
		return false;
	mappings = more;
	n_room = n;
	return true;
}

bool mapping_add(struct mapping *mapping)
{
	unsigned int n = rank(mapping->address);

	if (mapping_overlaps(mapping->address, mapping->size) ||
	    (n_mappings == n_room && !grow()))
		return false;
	memmove(&mappings[n + 1], &mappings[n],
		(n_mappings - n) * sizeof(*mappings));
	mappings[n] = mapping;
	n_mappings++;
	mapping->buffer_id = ++last_buffer_id;
	return true;
}

void mapping_remove(struct mapping *mapping)
{
	unsigned int n = rank(mapping->address) - 1;

	n_mappings--;
	memmove(&mappings[n], &mappings[n + 1],
		(n_mappings - n) * sizeof(*mappings));
	free(mapping);
}

unsigned int mapping_count(enum mapping_kind kind)
{
	unsigned int n = 0;

	for (unsigned int i = 0; i < n_mappings; i++)
		n += mappings[i]->kind == kind;
	return n;
}

bool mapping_is_host(const struct mapping *mapping)
{
	return mapping->kind == MAPPING_HOST ||
	       mapping->kind == MAPPING_REGISTERED ||
	       mapping->kind == MAPPING_ALIAS;
}

bool mapping_is_device(const struct mapping *mapping)
{
	return mapping->kind != MAPPING_REGISTERED || mapping->is_unified;
}

uint64_t mapping_clock(void)
{
	return clock_now;
}

void mapping_note_change(struct mapping *mapping)
{
	mapping->changed_at = ++clock_now;
}

/* Calls `is_fine` for each mapping of a range that has no gaps. */
static bool check(uint64_t address, uint64_t size,
		  bool (*is_fine)(const struct mapping *mapping,
				  const struct work *work, bool is_write),
		  const struct work *work, bool is_write)
{
	const struct mapping *mapping;
	uint64_t n;

	while (size > 0) {
		mapping = mapping_find(address);
		if (!mapping || !is_fine(mapping, work, is_write))
			return false;
		n = mapping->size - (address - mapping->address);
		if (n >= size)
			return true;
		address += n;
		size -= n;
	}
	return true;
}

static bool is_addressable(const struct mapping *mapping,
			   const struct work *work, bool is_write)
{
	(void)work;
	(void)is_write;
	return mapping_is_device(mapping);
}

static bool has_right(const struct mapping *mapping, const struct work *work,
		      bool is_write)
{
	CUmemAccess_flags needed = is_write ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
					    : CU_MEM_ACCESS_FLAGS_PROT_READ;

	return mapping_is_device(mapping) &&
	       (mapping->access[work->stream->context->device] & needed) ==
		       needed;
}

static bool is_allowed(const struct mapping *mapping, const struct work *work,
		       bool is_write)
{
	return mapping->changed_at <= work->queued_at &&
	       has_right(mapping, work, is_write);
}

bool mapping_has_device(uint64_t address, uint64_t size)
{
	return check(address, size, is_addressable, NULL, false);
}

bool mapping_is_writable(const struct stream *stream, uint64_t address,
			 uint64_t size)
{
	const struct work work = {.stream = (struct stream *)stream};

	return check(address, size, has_right, &work, true);
}

bool mapping_allows(const struct work *work, uint64_t address, uint64_t size,
		    bool is_write)
{
	return check(address, size, is_allowed, work, is_write);
}

bool mapping_has_changed(const struct work *work, uint64_t value)
{
	const struct mapping *mapping = mapping_find(value);

	return mapping && mapping->changed_at > work->queued_at;
}
