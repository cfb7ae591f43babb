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
	uint64_t task_size;    /* whole PLAN_ALIGN */
};

/* Of a task: as large as pays off, for fsdp-worker. */
#define GATHER_TASK_SIZE (UINT64_C(256) << 10)

/* The same for `n_ranks` that all take tasks: each finds some to do. */
uint64_t gather_task_size(const struct plan *plan, uint32_t n_ranks);

/* 0: there is nothing to move, since `full` is where the shards lie. */
uint64_t gather_count_tasks(const struct gather *gather);
void gather_run(const struct gather *gather, uint64_t task);

/* Bytes of elements that all of it reads and writes. */
uint64_t gather_count_bytes(const struct gather *gather);
