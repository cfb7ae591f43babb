/*
 * The item that loaders send to the trainer: a batch of words, and a sum by
 * which the trainer can check it.
 */
#pragma once
#include <fsdp.h>
#include <stddef.h>
#include <stdint.h>

/* The indices of an item's arrays. */
enum { BATCH_WORDS, BATCH_SUM, BATCH_PARTS };

/* The number of batches that may be sent and not released; then loaders
 * wait. */
#define BATCH_SLOTS 4

/* Return the size of a buffer for `n` words, in bytes. */
static inline uint64_t batch_capacity(size_t n)
{
	return n * sizeof(uint32_t) + 2 * FSDP_ITEM_ALIGN;
}

/* Return a sum that also depends on the order of the words. */
static inline uint64_t batch_sum(const uint32_t *words, size_t n)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < n; i++)
		sum = sum * 31 + words[i];
	return sum;
}
