/*
 * What a loader writes into the FIFO for each batch: a ticket for a tensor
 * that stays where it is, and what the trainer should find in it.
 *
 * A note is smaller than PIPE_BUF, so the kernel writes it in one piece:
 * several loaders can use one FIFO.
 */
#pragma once
#include <fsdp.h>
#include <stddef.h>
#include <stdint.h>

struct note {
	struct fsdp_ticket ticket;
	uint64_t sum; /* note_sum() of the batch */
};

/* A sum that also depends on the order of the words. */
static inline uint64_t note_sum(const uint32_t *words, size_t n)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < n; i++)
		sum = sum * 31 + words[i];
	return sum;
}
