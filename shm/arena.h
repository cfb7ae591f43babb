/*
 * An allocator of ranges in memory that it never touches.
 *
 * It works on offsets only and keeps its lists on the heap, so it serves chunks
 * of host and of device memory alike, and a client that overwrites a range
 * cannot damage it. Two-level segregated fit (Masmano et al., 2004): O(1)
 * allocation and release, immediate coalescing. Of several ranges that fit it
 * takes the one that was released last, whose pages are likely to be in the
 * cache.
 *
 * Not thread-safe: only the broker's one thread uses it.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct error;
struct arena;

/* `align`: power of two; 64 for host memory, 512 for device memory. */
int arena_new(uint64_t size, uint64_t align, struct arena **ret,
	      struct error *err);
/* Returns NULL; `arena` may be NULL. */
struct arena *arena_free(struct arena *arena);

enum arena_outcome {
	ARENA_OK = 0,
	ARENA_FULL = 1, /* no free range is large enough */
};

/* `size` > 0 is rounded up to the alignment. -ENOMEM: no heap memory. */
int arena_alloc(struct arena *arena, uint64_t size, uint64_t *ret_offset,
		struct error *err);

/*
 * Allocate exactly [offset, offset + size), with the end rounded up as by
 * arena_alloc(): this rebuilds an arena after a restart. -EEXIST: part of it is
 * allocated; -EINVAL: it is outside, or `offset` is misaligned. Any order of
 * calls works; ascending offsets are the fastest.
 */
int arena_reserve(struct arena *arena, uint64_t offset, uint64_t size,
		  struct error *err);

/* Release the range that starts there; asserts that there is one (offsets come
 * from the broker's own records, never from a client). */
void arena_release(struct arena *arena, uint64_t offset);

uint64_t arena_size(const struct arena *arena);
uint64_t arena_used(const struct arena *arena);

/* Visit the free ranges, lowest first: for trimming. */
typedef void arena_visit_fn(uint64_t offset, uint64_t size, void *data);
void arena_visit_free(const struct arena *arena, arena_visit_fn *fn,
		      void *data);

/* Check the lists for consistency; for tests. */
bool arena_is_consistent(const struct arena *arena);
