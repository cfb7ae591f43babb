/* Tests when mail has room, when something has arrived, and numbers that wrap
 * around. */
#include "shm/board.h"
#include "shm/mail.h"
#include "tests/lib/check.h"
#include <string.h>

#define N_RANKS 3

static struct board board;
static struct mail_counts counts[N_RANKS];

static void setup(void)
{
	cr_assert(zero(int, board_create(&board, N_RANKS, 1, NULL)));
	memset(counts, 0, sizeof(counts));
}

static void teardown(void)
{
	board_close(&board);
}

TestSuite(mail, .init = setup, .fini = teardown);

static void expect_four_and_no_more(void)
{
	for (int i = 0; i < MAIL_SLOTS; i++) {
		cr_expect(mail_has_room(&board, 0, &counts[0], 1));
		mail_count_sent(&board, 0, &counts[0], 1);
		cr_expect(mail_has_come(&board, 1, &counts[1], 0));
	}
	cr_expect(not(mail_has_room(&board, 0, &counts[0], 1)));
	cr_expect(mail_has_room(&board, 0, &counts[0], 2));
	cr_expect(not(mail_has_come(&board, 2, &counts[2], 0)));
	mail_count_received(&board, 1, &counts[1], 0);
	cr_expect(mail_has_room(&board, 0, &counts[0], 1));
}

Test(mail, a_mailbox_has_a_capacity_of_four_pieces)
{
	expect_four_and_no_more();
}

Test(mail, numbers_wrap)
{
	counts[0].sent[1] = counts[1].received[0] = UINT32_MAX - 2;
	mail_count_sent(&board, 0, &counts[0], 1);
	mail_count_received(&board, 1, &counts[1], 0);
	expect_four_and_no_more();
}

Test(mail, an_invalid_counter_leaves_no_capacity)
{
	atomic_store(&board.boxes[1].received[0], 5);
	cr_expect(not(mail_has_room(&board, 0, &counts[0], 1)));
}

Test(mail, an_invalid_counter_brings_no_mail)
{
	atomic_store(&board.boxes[0].sent[1], MAIL_SLOTS + 1);
	cr_expect(not(mail_has_come(&board, 1, &counts[1], 0)));
	atomic_store(&board.boxes[0].sent[1], UINT32_MAX);
	cr_expect(not(mail_has_come(&board, 1, &counts[1], 0)));
}

Test(mail, pieces_of_all_pairs_are_disjoint)
{
	const struct mail_head head = {7, 8, 9};
	struct mail_head ret;
	uint64_t size = mail_piece_size(&board);

	for (uint32_t to = 0; to < N_RANKS; to++)
		for (uint32_t i = 0; i < MAIL_SLOTS; i++) {
			mail_set_head(&board, 2, to, i, &head);
			memset(mail_piece(&board, 2, to, i),
			       (int)(to * MAIL_SLOTS + i), size);
		}
	for (uint32_t to = 0; to < N_RANKS; to++)
		for (uint32_t i = 0; i < MAIL_SLOTS; i++) {
			const uint8_t *piece = mail_piece(&board, 2, to, i);

			mail_get_head(&board, 2, to, i, &ret);
			cr_expect(eq(u64, ret.tag, 7));
			cr_expect(eq(u32, ret.dtype, 9));
			cr_expect(eq(u8, piece[0], to * MAIL_SLOTS + i));
			cr_expect(eq(u8, piece[size - 1], to * MAIL_SLOTS + i));
		}
	cr_expect(le(ptr, mail_piece(&board, 2, N_RANKS - 1, 3) + size,
		     board.boxes[2].mail + BOX_MAIL_SIZE));
}

Test(mail, a_wait_is_over_when_one_of_its_ranks_is_ready)
{
	const struct mail_wait wait = {&counts[0], .from = 6};
	const struct mail_wait room = {&counts[0], .to = 2};

	cr_expect(eq(u64, mail_awaited(&board, 0, &wait), 6));
	mail_count_sent(&board, 2, &counts[2], 0);
	cr_expect(zero(u64, mail_awaited(&board, 0, &wait)));
	cr_expect(zero(u64, mail_awaited(&board, 0, &room)));
	for (int i = 0; i < MAIL_SLOTS; i++)
		mail_count_sent(&board, 0, &counts[0], 1);
	cr_expect(eq(u64, mail_awaited(&board, 0, &room), 2));
}
