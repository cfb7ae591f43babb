/*
 * The plan of a group, as the broker has it, for a rank that does the work
 * itself on host memory.
 */
#pragma once
#include "collective/plan.h"
#include <stdbool.h>
#include <stdint.h>

struct error;
struct fsdp_group;
struct fsdp_tensor;
struct layout;

struct host_group {
	struct plan plan;            /* owned */
	struct layout *layout;       /* owned */
	struct fsdp_tensor *partial; /* owned; NULL: not needed yet */
	/* number of those that this rank has submitted */
	uint64_t n_reductions;
	/* The state after these reductions: the partial sums wait for an
	 * all-reduce, and the gradients contain a sum. */
	bool has_partial, has_grads;
};

/* Make the struct. Takes the plan, also on failure. */
int host_group_new(struct fsdp_group *group, struct plan *plan,
		   struct error *err);
void host_group_free(struct host_group *group); /* NULL is allowed */

/* Tell whether the group has trained parameters, with or without elements. */
bool host_group_has_gradients(const struct host_group *group);

/* Check that the broker's memory is as large as the plan says. Returns -EPROTO
 * if not. */
int host_group_check_memory(const struct fsdp_group *group, struct error *err);

/* Call this before the run is left. */
void host_group_end_handles(struct host_group *group);
