/*
 * Mail: messages between two ranks, in the box of the sender (boxes.h).
 *
 * A box has MAIL_SLOTS slots for each other rank. A message consists of a head
 * and its bytes, in one or more pieces. Pieces are numbered from 1 through all
 * messages from one rank to another. The sender counts the pieces that it has
 * sent and the receiver those that it has received, each in its own box. A slot
 * is used again when its piece was received. Both ring the other's bell.
 *
 * tests/model/mail.pml models this protocol.
 *
 * The head is input: it is copied, and its size is checked or allocated.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct board;

#define MAIL_SLOTS 4
/* in each slot; the first piece of a message uses it */
#define MAIL_HEAD_SIZE 64

struct mail_head {
	uint64_t tag, size; /* size: of the message, in bytes */
	uint32_t dtype;
};

/* The counts of a rank. The words in its box are copies for other ranks. */
struct mail_counts {
	uint32_t sent[64], received[64]; /* to each and from each rank */
};

/* Returns the bytes of a message in one piece. */
uint64_t mail_piece_size(const struct board *board);

/* Returns the bytes of a piece. */
uint8_t *mail_piece(const struct board *board, uint32_t from, uint32_t to,
		    uint32_t number);
void mail_set_head(const struct board *board, uint32_t from, uint32_t to,
		   uint32_t number, const struct mail_head *head);
void mail_get_head(const struct board *board, uint32_t from, uint32_t to,
		   uint32_t number, struct mail_head *ret);

/* These return whether this rank may write another piece to that one, and
 * whether that one has sent a piece to it. */
bool mail_has_room(const struct board *board, uint32_t rank,
		   const struct mail_counts *counts, uint32_t to);
bool mail_has_come(const struct board *board, uint32_t rank,
		   const struct mail_counts *counts, uint32_t from);

/* These count one more piece that this rank has written or read, and ring. */
void mail_count_sent(const struct board *board, uint32_t rank,
		     struct mail_counts *counts, uint32_t to);
void mail_count_received(const struct board *board, uint32_t rank,
			 struct mail_counts *counts, uint32_t from);

/* A wait for mail from any of the ranks `from`, or for space for mail to any of
 * `to`. */
struct mail_wait {
	const struct mail_counts *counts;
	uint64_t from, to; /* masks of ranks */
};

/* Returns the ranks for which the wait waits, or 0 if it is over. */
uint64_t mail_awaited(const struct board *board, uint32_t rank,
		      const struct mail_wait *wait);
