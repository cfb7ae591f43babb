/*
 * A gather copies the chunks of all shards to whole parameters, cast to their
 * full dtype, for each replica. All bytes of `full` that belong to no element
 * become zero.
 *
 * A gather is divided into tasks, which can run in any order and in parallel.
 */
#pragma once
#include "collective/host/kernel.h"
#include "collective/host/layout.h"

struct gather {
	const struct layout *layout;
	const struct kernels *kernels;
	const uint8_t *shards; /* n_replicas * shards_size bytes */
	uint8_t *full;         /* n_replicas * full_size bytes */
	uint64_t task_size;    /* bytes of `full`; a multiple of PLAN_ALIGN */
};

/* The task size of fsdp-worker. Larger tasks gain nothing. */
#define GATHER_TASK_SIZE (UINT64_C(256) << 10)

/* Returns a task size for `n_ranks` ranks that share the tasks: small enough
 * that each rank gets some of them. */
uint64_t gather_task_size(const struct plan *plan, uint32_t n_ranks);

/* Returns 0 if `full` is where the shards lie, so that nothing is copied. */
uint64_t gather_count_tasks(const struct gather *gather);
void gather_run(const struct gather *gather, uint64_t task);

/* Returns how many bytes of elements the gather reads and writes. */
uint64_t gather_count_bytes(const struct gather *gather);
