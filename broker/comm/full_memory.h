/*
 * The memory of unsharded parameters, from the start of a gather to its end.
 *
 * A group that is resharded to a smaller mesh keeps its copy. If the ranks
 * unshard by themselves, the memory is put aside and reused. Both are dropped
 * before a gather has to wait for memory.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct comm;
struct error;
struct gather;
struct group;

/* Returns the size of one slot of unsharded parameters, which the limiter
 * counts. A plan in place allocates none. */
uint64_t full_memory_size(const struct group *group);

/* Make or reuse the memory of a gather. Returns an enum pool_outcome. */
int full_memory_make(struct gather *gather, struct error *err);

/* Keep the memory of a gather that ends, or unpin it. */
void full_memory_release(struct gather *gather);

/* Unpin the copies that are kept for smaller meshes. Returns true if there were
 * some. */
bool full_memory_drop_kept(struct comm *comm);

/* Unpin these copies and the memory that was put aside. Returns true if there
 * was some. */
bool full_memory_drop(struct comm *comm);
