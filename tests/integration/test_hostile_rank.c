/*
 * Tests what a rank can do to the process of another rank by writing to the
 * board. It can only end their run. The other rank keeps the memory that it
 * uses, writes only its own memory, and waits no longer than for a rank that
 * does nothing.
 */
#include "shm/board.h"
#include "tests/lib/check.h"
#include "tests/lib/crew.h"
#include <errno.h>
#include <sched.h>
#include <string.h>

#define N_GROUPS 3

static const struct fsdp_param_spec SMALL[] = {
	{.name = "bias", .spec = {FSDP_F32, 1, {7}}},
};
static const struct fsdp_param_spec LARGE[] = {
	{.name = "weight", .spec = {FSDP_F32, 2, {2048, 1024}}},
};

static const struct layer LAYERS[] = {
	LAYER("large", LARGE, .policy = {.layout = FSDP_LAYOUT_FLAT}),
	LAYER("small", SMALL, .policy = {.layout = FSDP_LAYOUT_FLAT}),
	LAYER("other", LARGE, .policy = {.layout = FSDP_LAYOUT_FLAT}),
};

CHECKED_SUITE(hostile_rank, crew_setup, crew_teardown, .timeout = 300);

/* Start ranks with a time-out, or 0 for the default. */
static void start(int32_t timeout_ms)
{
	crew_start(2, &(struct crew){.options = {.timeout_ms = timeout_ms},
				     .layers = LAYERS,
				     .n_layers = N_GROUPS});
	cr_assert(zero(int, ranks_run(&ranks, trainer_commit)));
}

static struct board_page *page(void)
{
	size_t size;

	return crew_board(&size);
}

/* Returns the buffer of the group's last gather. */
static struct gathers_buffer *buffer_of(uint32_t group)
{
	uint64_t word = atomic_load(&page()->gathers.filling[group]);

	return &page()->gathers.buffers[word & 0xffff];
}

/* --- memory -------------------------------------------------------------- */

/* Write to the board that the large group was gathered into the buffer of the
 * small one. */
static int point_at_small(void)
{
	uint64_t small = atomic_load(&page()->gathers.filling[1]) & 0xffff;

	atomic_store(&page()->gathers.filling[0], UINT64_C(1000) << 16 | small);
	return 0;
}

Test(hostile_rank, a_gather_into_memory_that_is_too_small_is_refused)
{
	start(0);
	cr_assert(zero(int, ranks_run(&ranks, unshard1)));
	cr_assert(zero(int, ranks_run(&ranks, reshard1)));
	cr_assert(zero(int, rank_run(&ranks, 1, point_at_small)));
	cr_assert(zero(int, rank_run(&ranks, 0, begin0)));
	cr_expect(eq(int, rank_run(&ranks, 0, await0), -EPROTO));
	assert_says(0, "is damaged");
}

static int give_up_buffer_of_large(void)
{
	atomic_fetch_add(&buffer_of(0)->version, 1);
	return 0;
}

/* Rank 0 has a hold of this memory. Without it, the broker would give the
 * memory to the other group, which has the same size. */
Test(hostile_rank, memory_in_use_is_kept_even_if_the_board_releases_it)
{
	start(0);
	cr_assert(zero(int, ranks_run(&ranks, unshard0)));
	cr_assert(zero(int, rank_run(&ranks, 1, reshard0)));
	cr_assert(zero(int, rank_run(&ranks, 1, give_up_buffer_of_large)));
	cr_assert(zero(int, rank_run(&ranks, 1, begin2)));
	cr_assert(zero(int, rank_run(&ranks, 0, begin2)));
	cr_assert(zero(int, rank_run(&ranks, 0, await2)));
	cr_expect(zero(int, rank_run(&ranks, 0, check0)));
}

static int point_at_large(void)
{
	uint64_t large = atomic_load(&page()->gathers.filling[0]) & 0xffff;

	atomic_store(&page()->gathers.filling[1], UINT64_C(1000) << 16 | large);
	return give_up_buffer_of_large();
}

Test(hostile_rank, memory_in_use_is_not_replaced_for_another_group)
{
	start(0);
	cr_assert(zero(int, ranks_run(&ranks, unshard0)));
	cr_assert(zero(int, rank_run(&ranks, 1, point_at_large)));
	cr_assert(zero(int, rank_run(&ranks, 0, begin1)));
	cr_expect(eq(int, rank_run(&ranks, 0, await1), -EPROTO));
	assert_says(0, "is damaged");
	cr_expect(zero(int, rank_run(&ranks, 0, check0)));
}

/* --- endless work -------------------------------------------------------- */

#define BEGUN 12345

/* A word in which rank 1 tells rank 0 that it has begun. */
static _Atomic uint64_t *begun(void)
{
	return &page()->gathers.ranks[1].n_limited;
}

/* Write that the first piece is the next one, and that no piece is done. */
static void rewind_all(struct pieces *pieces, uint64_t lap)
{
	atomic_store(&pieces->done, (lap - 1) << 32);
	atomic_store(&pieces->next, lap << 32);
}

static int rewind_always(struct pieces *pieces, uint64_t lap)
{
	atomic_store(begun(), BEGUN);
	for (;;)
		atomic_store(&pieces->next, lap << 32);
	return 0;
}

static void await_rewinder(void)
{
	while (atomic_load(begun()) != BEGUN)
		(void)sched_yield();
}

/* Returns how many pieces were done. */
static int count_done(const struct pieces *pieces)
{
	return (int)(uint32_t)atomic_load(&pieces->done);
}

static int count_copied(void)
{
	return count_done(&buffer_of(0)->pieces);
}

/* Choose the buffer of the gather that this rank has begun. */
static int rewind_gather(void)
{
	int r = fsdp_test(&trainer()->works[0]);
	struct gathers_buffer *buffer = buffer_of(0);

	rewind_all(&buffer->pieces, atomic_load(&buffer->lap));
	return r == -EAGAIN ? 0 : r;
}

static int rewind_gather_always(void)
{
	struct gathers_buffer *buffer = buffer_of(0);

	return rewind_always(&buffer->pieces, atomic_load(&buffer->lap));
}

static int await_gather(void)
{
	await_rewinder();
	return await0();
}

Test(hostile_rank, a_rank_that_copies_does_not_loop_for_ever)
{
	int n;

	start(10000);
	cr_assert(zero(int, ranks_run(&ranks, unshard0)));
	n = rank_run(&ranks, 0, count_copied);
	cr_assert(zero(int, ranks_run(&ranks, reshard0)));
	cr_assert(zero(int, ranks_run(&ranks, begin0)));
	cr_assert(zero(int, rank_run(&ranks, 1, rewind_gather)));
	actor_begin(&ranks.actors[1], rewind_gather_always);
	cr_expect(eq(int, rank_run(&ranks, 0, await_gather), -ECONNABORTED));
	assert_says(0, "was not unsharded within 10000 ms");
	cr_expect(le(int, rank_run(&ranks, 0, count_copied), n));
	actor_kill(&ranks.actors[1]);
}

static int hand_in(void)
{
	struct trainer *self = trainer();
	int r = trainer_fill_input(0, 0);

	return r < 0 ? r
		     : rank_note(fsdp_reduce(self->groups[0], NULL,
					     &self->works[0]));
}

static int await_reduction(void)
{
	return rank_note(fsdp_wait(&trainer()->works[0], -1));
}

static int count_first_reduced(void)
{
	return count_done(&page()->pieces[1]);
}

static int count_reduced(void)
{
	return count_done(&page()->pieces[2]);
}

static int rewind_reduction(void)
{
	rewind_all(&page()->pieces[2], 2);
	return 0;
}

static int rewind_reduction_always(void)
{
	return rewind_always(&page()->pieces[2], 2);
}

static int await_rewound_reduction(void)
{
	await_rewinder();
	return await_reduction();
}

Test(hostile_rank, a_rank_that_reduces_does_not_loop_for_ever)
{
	int n;

	start(10000);
	cr_assert(zero(int, ranks_run(&ranks, hand_in)));
	cr_assert(zero(int, ranks_run(&ranks, await_reduction)));
	n = rank_run(&ranks, 0, count_first_reduced);
	cr_assert(zero(int, ranks_run(&ranks, hand_in)));
	cr_assert(zero(int, rank_run(&ranks, 1, rewind_reduction)));
	actor_begin(&ranks.actors[1], rewind_reduction_always);
	cr_expect(eq(int, rank_run(&ranks, 0, await_rewound_reduction),
		     -ECONNABORTED));
	assert_says(0, "within 10000 ms");
	cr_expect(le(int, rank_run(&ranks, 0, count_reduced), n));
	actor_kill(&ranks.actors[1]);
}

/* --- counts -------------------------------------------------------------- */

static void count_gathers(uint32_t n)
{
	atomic_store(&page()->n_gathered[0], n);
}

static int count_most(void)
{
	count_gathers(UINT32_MAX);
	return 0;
}

static int count_none(void)
{
	count_gathers(0);
	return 0;
}

static int take_count(const struct fsdp_group_entry *entry, void *data)
{
	if (!strcmp(entry->name, LAYERS[0].name))
		*(uint64_t *)data = entry->n_gathers;
	return 0;
}

static uint64_t gathers_shown(void)
{
	uint64_t n = 0;

	cr_assert(zero(int, fsdp_groups(client, "test", take_count, &n)));
	return n;
}

Test(hostile_rank, the_number_of_gathers_shown_for_a_group_never_decreases)
{
	start(0);
	cr_assert(zero(int, ranks_run(&ranks, unshard0)));
	cr_expect(eq(u64, gathers_shown(), 1));
	cr_assert(zero(int, rank_run(&ranks, 1, count_most)));
	cr_expect(eq(u64, gathers_shown(), UINT32_MAX));
	cr_assert(zero(int, rank_run(&ranks, 1, count_none)));
	cr_expect(eq(u64, gathers_shown(), UINT64_C(1) << 32));
}
