/*
 * Mail: the words and bytes of messages between two ranks, in the box of the
 * rank that sends (boxes.h).
 *
 * For each other rank a box has MAIL_SLOTS slots. A message is a head and its
 * bytes, in one piece or more; pieces are numbered from 1 through all messages
 * from one rank to another. The sender counts those that it has sent, and the
 * receiver those that it has received, each in its own box. A slot is used
 * again when the piece in it was received. Both ring the other's bell.
 *
 * tests/model/mail.pml models this protocol.
 *
 * The head is input: it is copied, and its size is compared or allocated.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct board;

#define MAIL_SLOTS     4
#define MAIL_HEAD_SIZE 64 /* in each slot, used by the first piece */

struct mail_head {
	uint64_t tag, size; /* bytes of the message */
	uint32_t dtype;
};

/* What a rank has counted itself; the words in its box are for others. */
struct mail_counts {
	uint32_t sent[64], received[64]; /* to and from each */
};

/* Bytes of a message in one piece. */
uint64_t mail_piece_size(const struct board *board);

/* The bytes of a piece, and its head. */
uint8_t *mail_piece(const struct board *board, uint32_t from, uint32_t to,
		    uint32_t number);
void mail_set_head(const struct board *board, uint32_t from, uint32_t to,
		   uint32_t number, const struct mail_head *head);
void mail_get_head(const struct board *board, uint32_t from, uint32_t to,
		   uint32_t number, struct mail_head *ret);

/* May this rank write another piece to that one? Has it one to read? */
bool mail_has_room(const struct board *board, uint32_t rank,
		   const struct mail_counts *counts, uint32_t to);
bool mail_has_come(const struct board *board, uint32_t rank,
		   const struct mail_counts *counts, uint32_t from);

/* This rank has written or read a piece more. Rings. */
void mail_count_sent(const struct board *board, uint32_t rank,
		     struct mail_counts *counts, uint32_t to);
void mail_count_received(const struct board *board, uint32_t rank,
			 struct mail_counts *counts, uint32_t from);

/* A wait for mail of any of these, or for room for any of those. */
struct mail_wait {
	const struct mail_counts *counts;
	uint64_t from, to; /* masks */
};

/* The ranks that it takes; 0: it is over. */
uint64_t mail_awaited(const struct board *board, uint32_t rank,
		      const struct mail_wait *wait);
