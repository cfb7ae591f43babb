/*
 * Allocates ranges of memory that it never accesses.
 *
 * An arena works on offsets only and keeps its lists on the heap, so it serves
 * chunks of host and of device memory, and a client that overwrites a range
 * cannot damage it. It is a two-level segregated fit (Masmano et al., 2004):
 * allocation and release are O(1), and free ranges are merged at once. Of
 * several ranges that fit it takes the one that was released last, because its
 * pages are probably in the cache.
 *
 * An arena is not thread-safe; only the main thread of the broker uses it.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct error;
struct arena;

/* `align` is a power of two: 64 for host memory, 512 for device memory. */
int arena_new(uint64_t size, uint64_t align, struct arena **ret,
	      struct error *err);
/* Returns NULL. `arena` may be NULL. */
struct arena *arena_free(struct arena *arena);

enum arena_outcome {
	ARENA_OK = 0,
	ARENA_FULL = 1, /* no free range is large enough */
};

/* Allocates `size` bytes, rounded up to the alignment. `size` must not be 0.
 * Returns -ENOMEM if there is no heap memory. */
int arena_alloc(struct arena *arena, uint64_t size, uint64_t *ret_offset,
		struct error *err);

/*
 * Allocates exactly [offset, offset + size), with the end rounded up as by
 * arena_alloc(), to rebuild an arena after a restart. Returns -EEXIST if part
 * of the range is allocated, and -EINVAL if it is outside of the arena or
 * `offset` is misaligned. Calls may come in any order; ascending offsets are
 * the fastest.
 */
int arena_reserve(struct arena *arena, uint64_t offset, uint64_t size,
		  struct error *err);

/* Releases the range that starts at `offset`. There must be one, because
 * offsets come from the broker's own records and never from a client. */
void arena_release(struct arena *arena, uint64_t offset);

uint64_t arena_size(const struct arena *arena);
uint64_t arena_used(const struct arena *arena);

/* Visits the free ranges in ascending order, for trimming. */
typedef void arena_visit_fn(uint64_t offset, uint64_t size, void *data);
void arena_visit_free(const struct arena *arena, arena_visit_fn *fn,
		      void *data);

/* Returns whether the lists are consistent, for tests. */
bool arena_is_consistent(const struct arena *arena);
