/*
 * Compares the arena with a simple model, which has one byte for each granule.
 */
#include "proto/error.h"
#include "shm/arena.h"
#include "tests/lib/check.h"
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define ALIGN 64

static struct arena *make(uint64_t size)
{
	struct arena *arena = NULL;

	cr_assert(zero(int, arena_new(size, ALIGN, &arena, NULL)));
	return arena;
}

static uint64_t take(struct arena *arena, uint64_t size)
{
	uint64_t offset = UINT64_MAX;

	cr_assert(eq(int, arena_alloc(arena, size, &offset, NULL), ARENA_OK));
	return offset;
}

static void keep_largest(uint64_t offset, uint64_t size, void *data)
{
	uint64_t *largest = data;

	(void)offset;
	if (size > *largest)
		*largest = size;
}

static uint64_t largest_free(const struct arena *arena)
{
	uint64_t largest = 0;

	arena_visit_free(arena, keep_largest, &largest);
	return largest;
}

Test(arena, ranges_are_aligned_and_rounded_up)
{
	struct arena *arena = make(1024);
	uint64_t a = take(arena, 1), b = take(arena, 65);

	cr_expect(zero(u64, a % ALIGN));
	cr_expect(zero(u64, b % ALIGN));
	cr_expect(eq(u64, arena_used(arena), 64 + 128));
	cr_expect(eq(u64, largest_free(arena), 1024 - 192));
	cr_expect(eq(u64, arena_size(arena), 1024));
	cr_expect(eq(ptr, arena_free(arena), NULL));
}

Test(arena, invalid_sizes_are_refused)
{
	struct arena *arena = NULL;
	uint64_t offset = 77;

	cr_expect(eq(int, arena_new(0, ALIGN, &arena, NULL), -EINVAL));
	cr_expect(eq(int, arena_new(65, ALIGN, &arena, NULL), -EINVAL));
	cr_expect(eq(int, arena_new(UINT64_C(1) << 50, ALIGN, &arena, NULL),
		     -EINVAL));
	cr_expect(eq(ptr, arena, NULL));
	arena = make(1024);
	cr_expect(eq(int, arena_alloc(arena, 0, &offset, NULL), -EINVAL));
	cr_expect(eq(int, arena_alloc(arena, 1025, &offset, NULL), ARENA_FULL));
	cr_expect(eq(int, arena_alloc(arena, UINT64_MAX, &offset, NULL),
		     ARENA_FULL));
	cr_expect(eq(u64, offset, 77));
	arena_free(arena);
	arena_free(NULL);
}

Test(arena, the_last_byte_can_be_allocated)
{
	struct arena *arena = make(1024);
	uint64_t offset;

	cr_expect(zero(u64, take(arena, 1024)));
	cr_expect(zero(u64, largest_free(arena)));
	cr_expect(eq(int, arena_alloc(arena, 1, &offset, NULL), ARENA_FULL));
	arena_release(arena, 0);
	cr_expect(eq(u64, largest_free(arena), 1024));
	arena_free(arena);
}

Test(arena, the_range_released_last_is_allocated_first)
{
	struct arena *arena = make(1 << 20);
	uint64_t at[8];
	int i;

	/* The size is larger than the smallest of its size class. */
	for (i = 0; i < 8; i++)
		at[i] = take(arena, 65 * 64);
	arena_release(arena, at[1]);
	arena_release(arena, at[5]);
	arena_release(arena, at[3]);
	cr_expect(eq(u64, take(arena, 65 * 64), at[3]));
	cr_expect(eq(u64, take(arena, 65 * 64), at[5]));
	cr_expect(eq(u64, take(arena, 65 * 64), at[1]));
	arena_free(arena);
}

Test(arena, a_fitting_range_deep_in_its_class_is_found_before_refusing)
{
	struct arena *arena = make(64 * 4096);
	uint64_t fits, at[16], offset;
	int i;

	fits = take(arena, 65 * 64);
	take(arena, 64);
	for (i = 0; i < 16; i++) {
		at[i] = take(arena, 64 * 64);
		take(arena, 64);
	}
	while (arena_alloc(arena, 64, &offset, NULL) == ARENA_OK)
		;
	arena_release(arena, fits);
	for (i = 0; i < 16; i++)
		arena_release(arena, at[i]);
	cr_expect(eq(u64, take(arena, 65 * 64), fits));
	cr_expect(eq(int, arena_alloc(arena, 65 * 64, &offset, NULL),
		     ARENA_FULL));
	arena_free(arena);
}

Test(arena, very_large_arenas_are_supported)
{
	struct arena *arena = make(UINT64_C(1) << 44);
	uint64_t a = take(arena, UINT64_C(1) << 43);
	uint64_t b = take(arena, UINT64_C(1) << 43);

	cr_expect(eq(u64, a ^ b, UINT64_C(1) << 43));
	arena_release(arena, a);
	arena_release(arena, b);
	cr_expect(eq(u64, largest_free(arena), UINT64_C(1) << 44));
	cr_expect(arena_is_consistent(arena));
	arena_free(arena);
}

Test(arena, releasing_a_range_that_was_not_allocated_aborts, .signal = SIGABRT)
{
	struct arena *arena = make(1024);

	take(arena, 128);
	arena_release(arena, 64);
}

Test(arena, reserve_takes_exactly_the_given_range)
{
	struct arena *arena = make(4096);

	cr_expect(zero(int, arena_reserve(arena, 1024, 512, NULL)));
	cr_expect(zero(int, arena_reserve(arena, 4032, 64, NULL)));
	cr_expect(zero(int, arena_reserve(arena, 0, 65, NULL)));
	cr_expect(eq(u64, arena_used(arena), 512 + 64 + 128));
	cr_expect(eq(u64, largest_free(arena), 4032 - 1536));
	cr_expect(arena_is_consistent(arena));
	arena_release(arena, 1024);
	cr_expect(eq(u64, largest_free(arena), 4032 - 128));
	arena_free(arena);
}

Test(arena, reserve_refuses_taken_outside_and_misaligned_ranges)
{
	struct arena *arena = make(4096);
	struct error err = ERROR_NULL;

	cr_assert(zero(int, arena_reserve(arena, 1024, 1024, NULL)));
	cr_expect(eq(int, arena_reserve(arena, 1024, 64, &err), -EEXIST));
	cr_expect(ne(str, err.msg, ""));
	cr_expect(eq(int, arena_reserve(arena, 0, 1088, NULL), -EEXIST));
	cr_expect(eq(int, arena_reserve(arena, 1984, 128, NULL), -EEXIST));
	cr_expect(eq(int, arena_reserve(arena, 0, 4096, NULL), -EEXIST));
	cr_expect(eq(int, arena_reserve(arena, 32, 64, NULL), -EINVAL));
	cr_expect(eq(int, arena_reserve(arena, 0, 0, NULL), -EINVAL));
	cr_expect(eq(int, arena_reserve(arena, 4096, 64, NULL), -EINVAL));
	cr_expect(eq(int, arena_reserve(arena, 4032, 65, NULL), -EINVAL));
	cr_expect(eq(int, arena_reserve(arena, 64, UINT64_MAX, NULL), -EINVAL));
	cr_expect(eq(u64, arena_used(arena), 1024));
	cr_expect(arena_is_consistent(arena));
	arena_free(arena);
}

/* --- the oracle ---------------------------------------------------------- */

#define N_GRANULES 4096
#define N_OPS      100000

struct range {
	uint64_t offset, size;
};

struct world {
	struct arena *arena;
	unsigned char taken[N_GRANULES];
	struct range live[N_GRANULES];
	unsigned int n_live;
	uint64_t used;
	uint32_t seed;
};

static uint32_t dice(struct world *world)
{
	world->seed ^= world->seed << 13;
	world->seed ^= world->seed >> 17;
	world->seed ^= world->seed << 5;
	return world->seed;
}

static unsigned int longest_gap(const struct world *world)
{
	unsigned int i, run = 0, longest = 0;

	for (i = 0; i < N_GRANULES; i++) {
		run = world->taken[i] ? 0 : run + 1;
		longest = run > longest ? run : longest;
	}
	return longest;
}

static void note(struct world *world, uint64_t offset, uint64_t n)
{
	uint64_t i;

	cr_assert(offset % ALIGN == 0 && offset / ALIGN + n <= N_GRANULES);
	for (i = offset / ALIGN; i < offset / ALIGN + n; i++) {
		cr_assert(world->taken[i] == 0, "granule %u given twice",
			  (unsigned int)i);
		world->taken[i] = 1;
	}
	world->live[world->n_live++] = (struct range){offset, n * ALIGN};
	world->used += n * ALIGN;
}

static void do_alloc(struct world *world)
{
	uint64_t n = 1 + dice(world) % (1u << dice(world) % 8), offset;

	if (arena_alloc(world->arena, n * ALIGN - dice(world) % ALIGN, &offset,
			NULL) == ARENA_OK)
		note(world, offset, n);
	else
		cr_assert(longest_gap(world) < n, "refused though it fits");
}

static void do_reserve(struct world *world)
{
	uint64_t n = 1 + dice(world) % 16, first = dice(world) % N_GRANULES, i;
	int r = 0;

	if (first + n > N_GRANULES)
		r = -EINVAL;
	for (i = first; r == 0 && i < first + n; i++)
		if (world->taken[i])
			r = -EEXIST;
	cr_assert(arena_reserve(world->arena, first * ALIGN, n * ALIGN, NULL) ==
		  r);
	if (r == 0)
		note(world, first * ALIGN, n);
}

static void do_release(struct world *world)
{
	unsigned int i = dice(world) % world->n_live;
	struct range range = world->live[i];

	arena_release(world->arena, range.offset);
	memset(world->taken + range.offset / ALIGN, 0, range.size / ALIGN);
	world->used -= range.size;
	world->live[i] = world->live[--world->n_live];
}

static void do_something(struct world *world, int op)
{
	/* The share of releases changes, so that the arena fills and
	 * empties. */
	uint32_t share = op / 5000 % 2 ? 60 : 35;

	if (world->n_live > 0 && dice(world) % 100 < share)
		do_release(world);
	else if (dice(world) % 8 == 0)
		do_reserve(world);
	else
		do_alloc(world);
}

static void world_init(struct world *world)
{
	memset(world, 0, sizeof(*world));
	world->arena = make(N_GRANULES * ALIGN);
	world->seed = 20261120;
}

Test(arena, a_random_run_agrees_with_the_oracle, .timeout = 300)
{
	static struct world world;
	int i;

	world_init(&world);
	for (i = 0; i < N_OPS; i++) {
		do_something(&world, i);
		cr_assert(arena_used(world.arena) == world.used);
		if (i % 50 == 0) {
			cr_assert(arena_is_consistent(world.arena));
			cr_assert(largest_free(world.arena) ==
				  longest_gap(&world) * ALIGN);
		}
	}
	while (world.n_live > 0)
		do_release(&world);
	cr_expect(arena_is_consistent(world.arena));
	cr_expect(eq(u64, largest_free(world.arena), N_GRANULES * ALIGN));
	arena_free(world.arena);
}

struct gaps {
	struct range gap[N_GRANULES];
	unsigned int n;
};

static void note_gap(uint64_t offset, uint64_t size, void *data)
{
	struct gaps *gaps = data;

	gaps->gap[gaps->n++] = (struct range){offset, size};
}

Test(arena, a_rebuilt_arena_has_the_same_free_ranges, .timeout = 300)
{
	static struct world world;
	static struct gaps before, after;
	struct arena *rebuilt = make(N_GRANULES * ALIGN);
	unsigned int i;

	world_init(&world);
	for (i = 0; i < 6000; i++)
		do_something(&world, (int)i);
	/* Reserve the blocks in the order of the live list, which is
	 * arbitrary. */
	for (i = 0; i < world.n_live; i++)
		cr_assert(zero(int, arena_reserve(rebuilt, world.live[i].offset,
						  world.live[i].size, NULL)));
	arena_visit_free(world.arena, note_gap, &before);
	arena_visit_free(rebuilt, note_gap, &after);
	cr_assert(gt(uint, before.n, 20));
	cr_assert(eq(uint, after.n, before.n));
	cr_expect(zero(int, memcmp(after.gap, before.gap, sizeof(after.gap))));
	cr_expect(eq(u64, arena_used(rebuilt), world.used));
	cr_expect(arena_is_consistent(rebuilt));
	arena_free(rebuilt);
	arena_free(world.arena);
}

Test(arena, reserving_many_ranges_in_any_order_is_quick, .timeout = 60)
{
	/* There are 262,144 ranges with gaps between them, reserved in steps of
	 * 100,003 around a ring. A search through all of them would take
	 * minutes. */
	const uint64_t n = 1 << 18, step = 2 * ALIGN;
	struct arena *arena = make(n * step);
	uint64_t i;

	for (i = 0; i < n; i++)
		cr_assert(arena_reserve(arena, i * UINT64_C(100003) % n * step,
					ALIGN, NULL) == 0);
	cr_expect(eq(u64, arena_used(arena), n * ALIGN));
	cr_expect(arena_is_consistent(arena));
	arena_free(arena);
}

#ifdef FSDP_TEST_POINTS
Test(arena, a_failed_heap_allocation_leaves_the_arena_unchanged)
{
	struct arena *arena = make(4096);
	struct error err = ERROR_NULL;
	uint64_t offset = 77;

	setenv("FSDP_FAIL_AT", "arena.grow:*:12", 1);
	cr_expect(eq(int, arena_alloc(arena, 64, &offset, &err), -ENOMEM));
	cr_expect(eq(int, arena_reserve(arena, 64, 64, NULL), -ENOMEM));
	cr_expect(eq(u64, offset, 77));
	cr_expect(zero(u64, arena_used(arena)));
	cr_expect(arena_is_consistent(arena));
	arena_free(arena);
}
#endif
