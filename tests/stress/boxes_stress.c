/*
 * Threads act as the ranks of a run. They put and take rounds as fast as they
 * can, and send each other pieces of mail, with sleeps and yields in between.
 * They write plain words into the slots. So a counter that is stored too early,
 * or a slot that is written too early, is a race for ThreadSanitizer, and a
 * wrong number on a CPU with weak ordering. A wake that is lost leaves the run
 * hanging.
 */
#include "proto/error.h"
#include "shm/board.h"
#include "tests/stress/stress.h"
#include <sched.h>
#include <string.h>

#define N_RANKS  3
#define N_ROUNDS 20000
#define N_WORDS  32

static struct board board;

static void wait_for(struct board_wait *wait)
{
	wait->board = &board;
	wait->is_over = look_over;
	while (board_wait(&board, wait, INT64_MAX) == BELL_AGAIN)
		;
}

static void await_all(uint32_t rank, enum board_goal goal, uint32_t round)
{
	for (uint32_t i = 0; i < N_RANKS; i++) {
		struct board_wait wait = {
			.rank = rank, .goal = goal, .number = round, .of = i};

		wait_for(&wait);
	}
}

static void write_words(uint8_t *to, uint32_t value)
{
	uint32_t *words = (uint32_t *)to;

	for (int i = 0; i < N_WORDS; i++)
		words[i] = value;
}

static void check_words(const uint8_t *from, uint32_t value)
{
	const uint32_t *words = (const uint32_t *)from;

	for (int i = 0; i < N_WORDS; i++)
		check(words[i] == value, "bytes of another round");
}

static uint32_t value_of(uint32_t rank, uint32_t number)
{
	return number * N_RANKS + rank;
}

static void do_round(uint32_t rank, uint32_t round)
{
	struct box_call call = {.number = round}, theirs;

	await_all(rank, BOARD_TAKEN, round - BOX_SLOTS);
	box_set_call(&board, rank, round, &call);
	write_words(box_slot(&board, rank, round), value_of(rank, round));
	box_set(&board, rank, BOX_PUT, round);
	await_all(rank, BOARD_PUT, round);
	for (uint32_t i = 0; i < N_RANKS; i++) {
		box_get_call(&board, i, round, &theirs);
		check(theirs.number == round, "a call of another round");
		check_words(box_slot(&board, i, round), value_of(i, round));
	}
	box_set(&board, rank, BOX_TAKEN, round);
}

/* Send a piece to the next rank, and receive one from the previous rank. */
static void do_mail(uint32_t rank, uint32_t number, struct mail_counts *counts)
{
	const struct mail_head head = {.tag = number};
	uint32_t next = (rank + 1) % N_RANKS;
	uint32_t last = (rank + N_RANKS - 1) % N_RANKS;
	const struct mail_wait room = {counts, .to = UINT64_C(1) << next};
	const struct mail_wait mail = {counts, .from = UINT64_C(1) << last};
	struct board_wait wait = {.rank = rank, .goal = BOARD_MAIL};
	struct mail_head theirs;

	wait.mail = &room;
	wait_for(&wait);
	mail_set_head(&board, rank, next, number, &head);
	write_words(mail_piece(&board, rank, next, number),
		    value_of(rank, number));
	mail_count_sent(&board, rank, counts, next);
	wait.mail = &mail;
	wait_for(&wait);
	mail_get_head(&board, last, rank, number, &theirs);
	check(theirs.tag == number, "the head of another piece");
	check_words(mail_piece(&board, last, rank, number),
		    value_of(last, number));
	mail_count_received(&board, rank, counts, last);
}

static void *run(void *data)
{
	uint32_t rank = (uint32_t)(uintptr_t)data;
	struct mail_counts counts = {0};

	for (uint32_t i = 1; i <= N_ROUNDS; i++) {
		if (i % 64 == rank)
			come_late();
		if (i % 16 == rank)
			sched_yield();
		do_round(rank, i);
		do_mail(rank, i, &counts);
	}
	return NULL;
}

int main(void)
{
	pthread_t threads[N_RANKS];
	struct error err = ERROR_NULL;

	check(board_create(&board, N_RANKS, 1, &err) == 0, err.msg);
	start_threads(threads, N_RANKS, run);
	join_threads(threads, N_RANKS);
	board_close(&board);
	printf("%d rounds and pieces of mail\n", N_ROUNDS);
	return 0;
}
