/*
 * What loaders send to the trainer: a batch of words, and what the trainer
 * should find in it.
 */
#pragma once
#include <fsdp.h>
#include <stddef.h>
#include <stdint.h>

/* The arrays of an item. */
enum { BATCH_WORDS, BATCH_SUM, BATCH_PARTS };

/* Batches that a trainer may be behind; loaders wait when it is. */
#define BATCH_SLOTS 4

/* Of a buffer for `n` words. */
static inline uint64_t batch_capacity(size_t n)
{
	return n * sizeof(uint32_t) + 2 * FSDP_ITEM_ALIGN;
}

/* A sum that also depends on the order of the words. */
static inline uint64_t batch_sum(const uint32_t *words, size_t n)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < n; i++)
		sum = sum * 31 + words[i];
	return sum;
}
