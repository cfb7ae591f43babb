/*
 * An allocator of ranges in memory that it never touches.
 *
 * It deals in offsets only and keeps its books on the heap, so it serves
 * memfd chunks and device chunks alike, and a range that a client scribbles
 * over cannot hurt it. Two-level segregated fit (Masmano et al., 2004): O(1)
 * allocation and release, immediate coalescing. Among fitting ranges it takes
 * the one released last, whose pages are warm.
 *
 * Not thread-safe: the broker's one thread owns it.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct error;
struct arena;

/* `align`: power of two; 64 for host memory, 512 for device memory. */
int arena_new(uint64_t size, uint64_t align, struct arena **ret,
	      struct error *err);
struct arena *arena_free(struct arena *arena); /* NULL is fine; gives NULL */

enum arena_outcome {
	ARENA_OK = 0,
	ARENA_FULL = 1, /* no free range is large enough */
};

/* `size` > 0 is rounded up to the alignment. -ENOMEM: no heap. */
int arena_alloc(struct arena *arena, uint64_t size, uint64_t *ret_offset,
		struct error *err);

/*
 * Take exactly [offset, offset + size), the end rounded up as arena_alloc()
 * does: rebuilds an arena after a restart. -EEXIST if any of it is taken,
 * -EINVAL if outside or if `offset` is misaligned. Cheapest at the end of the
 * arena and in ascending order; any order will do.
 */
int arena_reserve(struct arena *arena, uint64_t offset, uint64_t size,
		  struct error *err);

/* Give a range back by its start; asserts that it is one (offsets come from
 * our own books, never from a client). */
void arena_release(struct arena *arena, uint64_t offset);

uint64_t arena_size(const struct arena *arena);
uint64_t arena_used(const struct arena *arena);
uint64_t arena_largest_free(const struct arena *arena);

/* Visit the free ranges, lowest first: for trimming. */
typedef void arena_visit_fn(uint64_t offset, uint64_t size, void *data);
void arena_visit_free(const struct arena *arena, arena_visit_fn *fn,
		      void *data);

/* Check the books against themselves; for tests. */
bool arena_is_consistent(const struct arena *arena);
