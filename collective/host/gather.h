/*
 * Gathering: from the chunks of all shards to whole parameters, cast to their
 * dtype, for every replica; everything in `full` that is no element is zero.
 *
 * A gather is a number of tasks that can run in any order and side by side.
 */
#pragma once
#include "collective/host/kernel.h"
#include "collective/host/layout.h"

struct gather {
	const struct layout *layout;
	const struct kernels *kernels;
	const uint8_t *shards; /* n_replicas times shards_size */
	uint8_t *full;         /* n_replicas times full_size */
};

/* 0: there is nothing to move, since `full` is where the shards lie. */
uint64_t gather_count_tasks(const struct gather *gather);
void gather_run(const struct gather *gather, uint64_t task);

/* Bytes of elements that all of it reads and writes. */
uint64_t gather_count_bytes(const struct gather *gather);
