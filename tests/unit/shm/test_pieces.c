/*
 * Tests pieces: each is taken once, laps do not mix, and numbers wrap around.
 */
#include "shm/pieces.h"
#include "tests/lib/check.h"

static struct pieces pieces;

static void do_all(uint32_t number, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		cr_expect(eq(u32, pieces_take(&pieces, number, n), i));
		cr_expect(not(pieces_are_done(&pieces, number, n)));
		cr_expect(eq(int, pieces_end_one(&pieces, number, n),
			     i + 1 == n));
	}
	cr_expect(eq(u32, pieces_take(&pieces, number, n), PIECES_NONE));
	cr_expect(pieces_are_done(&pieces, number, n));
}

Test(pieces, each_piece_is_taken_once_and_the_last_one_is_reported)
{
	do_all(1, 3);
}

Test(pieces, a_piece_that_is_taken_is_not_done)
{
	cr_expect(eq(u32, pieces_take(&pieces, 1, 2), 0));
	cr_expect(eq(u32, pieces_take(&pieces, 1, 2), 1));
	cr_expect(eq(u32, pieces_take(&pieces, 1, 2), PIECES_NONE));
	cr_expect(not(pieces_are_done(&pieces, 1, 2)));
	cr_expect(not(pieces_end_one(&pieces, 1, 2)));
	cr_expect(not(pieces_are_done(&pieces, 1, 2)));
	cr_expect(pieces_end_one(&pieces, 1, 2));
}

Test(pieces, the_next_lap_starts_with_all_pieces)
{
	do_all(1, 3);
	cr_expect(not(pieces_are_done(&pieces, 65, 2)));
	do_all(65, 2);
}

Test(pieces, a_lap_that_is_over_has_no_pieces)
{
	do_all(65, 2);
	cr_expect(eq(u32, pieces_take(&pieces, 1, 5), PIECES_NONE));
	cr_expect(pieces_are_done(&pieces, 1, 5));
	cr_expect(pieces_are_done(&pieces, 65, 2));
}

Test(pieces, numbers_wrap)
{
	do_all(UINT32_MAX / 2, 2);
	for (uint32_t n = UINT32_MAX - 1; n != 2; n++)
		do_all(n, 2);
}

/* The rank that opened it died before the first piece was taken. */
Test(pieces, a_lap_may_be_half_open)
{
	atomic_store(&pieces.done, UINT64_C(1) << 32);
	do_all(1, 2);
}
