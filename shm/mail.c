#include "shm/mail.h"
#include "proto/failpoint.h"
#include "shm/board.h"
#include <string.h>

_Static_assert(sizeof(struct mail_head) <= MAIL_HEAD_SIZE, "layout");
_Static_assert(BOX_MAIL_SIZE / BOX_RANKS / MAIL_SLOTS > MAIL_HEAD_SIZE,
	       "a piece has bytes");

static uint64_t slot_size(const struct board *board)
{
	return BOX_MAIL_SIZE / board->n_ranks / MAIL_SLOTS / 64 * 64;
}

uint64_t mail_piece_size(const struct board *board)
{
	return slot_size(board) - MAIL_HEAD_SIZE;
}

static uint8_t *slot_of(const struct board *board, uint32_t from, uint32_t to,
			uint32_t number)
{
	return board->boxes[from].mail +
	       (to * MAIL_SLOTS + number % MAIL_SLOTS) * slot_size(board);
}

uint8_t *mail_piece(const struct board *board, uint32_t from, uint32_t to,
		    uint32_t number)
{
	return slot_of(board, from, to, number) + MAIL_HEAD_SIZE;
}

void mail_set_head(const struct board *board, uint32_t from, uint32_t to,
		   uint32_t number, const struct mail_head *head)
{
	memcpy(slot_of(board, from, to, number), head, sizeof(*head));
}

void mail_get_head(const struct board *board, uint32_t from, uint32_t to,
		   uint32_t number, struct mail_head *ret)
{
	memcpy(ret, slot_of(board, from, to, number), sizeof(*ret));
}

/* seq_cst, also in count(): see bell.h */
static uint32_t load(const _Atomic uint32_t *word)
{
	return atomic_load_explicit(word, memory_order_seq_cst);
}

/* The other rank can write any count. With an invalid one there is neither
 * space nor mail. */
bool mail_has_room(const struct board *board, uint32_t rank,
		   const struct mail_counts *counts, uint32_t to)
{
	uint32_t received = load(&board->boxes[to].received[rank]);

	return counts->sent[to] - received < MAIL_SLOTS;
}

bool mail_has_come(const struct board *board, uint32_t rank,
		   const struct mail_counts *counts, uint32_t from)
{
	uint32_t sent = load(&board->boxes[from].sent[rank]);

	return sent - counts->received[from] - 1 < MAIL_SLOTS;
}

static void count(const struct board *board, _Atomic uint32_t *word,
		  uint32_t number, uint32_t other)
{
	atomic_store_explicit(word, number, memory_order_seq_cst);
	failpoint("mail.counted");
	bell_ring(&board->boxes[other].mail_bell);
}

void mail_count_sent(const struct board *board, uint32_t rank,
		     struct mail_counts *counts, uint32_t to)
{
	count(board, &board->boxes[rank].sent[to], ++counts->sent[to], to);
}

void mail_count_received(const struct board *board, uint32_t rank,
			 struct mail_counts *counts, uint32_t from)
{
	count(board, &board->boxes[rank].received[from],
	      ++counts->received[from], from);
}

uint64_t mail_awaited(const struct board *board, uint32_t rank,
		      const struct mail_wait *wait)
{
	for (uint32_t i = 0; i < board->n_ranks; i++) {
		if ((wait->from >> i & 1) &&
		    mail_has_come(board, rank, wait->counts, i))
			return 0;
		if ((wait->to >> i & 1) &&
		    mail_has_room(board, rank, wait->counts, i))
			return 0;
	}
	return wait->from | wait->to;
}
