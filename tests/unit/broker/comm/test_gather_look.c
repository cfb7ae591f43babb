/*
 * Tests what the broker reads on boards. Ranks can write anything there, and
 * that must not keep the broker busy.
 */
#include "broker/comm/comm.h"
#include "broker/comm/gather_look.h"
#include "shm/gathers.h"
#include "tests/lib/check.h"

static struct comm comm;

static void setup(void)
{
	comm = (struct comm){.id = 7, .n_world = 2, .n_ranks = 2};
	cr_assert(zero(int, board_create(&comm.board, 2, 7, NULL)));
}

static void teardown(void)
{
	board_close(&comm.board);
}

TestSuite(gather_look, .init = setup, .fini = teardown, .timeout = 300);

/* Numbers have 48 bits. */
Test(gather_look, ends_for_any_number_that_a_rank_has_written)
{
	static const uint64_t numbers[] = {
		UINT64_MAX,
		UINT64_MAX - 1,
		UINT64_MAX - GATHERS_PLACES,
		UINT64_C(1) << 48,
		(UINT64_C(1) << 48) - 1,
	};

	for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers); i++) {
		struct limiter_state state = {.n_waiting = 0};

		atomic_store(&gathers_of(&comm.board, 1)->began, numbers[i]);
		gathers_look_up(&comm, &state);
		cr_expect(zero(u32, state.n_in_flight));
	}
}
