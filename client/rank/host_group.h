/*
 * What a rank on host memory needs to know of a group to do its work itself:
 * the plan that the broker has, too.
 */
#pragma once
#include "collective/plan.h"
#include <stdbool.h>
#include <stdint.h>

struct error;
struct fsdp_group;
struct fsdp_tensor;
struct group_request;
struct layout;

struct host_group {
	struct plan plan;            /* owned */
	struct layout *layout;       /* owned */
	struct fsdp_tensor *partial; /* owned; NULL: not needed yet */
	uint32_t index;              /* among the run's groups */
	uint64_t n_reductions;       /* that this rank has handed in */
	/* As of those: do the partial sums wait for an all-reduce, and was
	 * anything reduced into the gradients? */
	bool has_partial, has_grads;
};

/* From the request that registered it. -EPROTO: the broker's plan is another
 * one. */
int host_group_new(struct fsdp_group *group, const struct group_request *asked,
		   uint64_t hash, struct error *err);
void host_group_free(struct host_group *group); /* NULL is fine */

/* Is anything trained of it, even if that has no elements? */
bool host_group_has_gradients(const struct host_group *group);

/* Is the memory that the broker gave as large as the plan says? -EPROTO. */
int host_group_check_memory(const struct fsdp_group *group, struct error *err);

/* Before the run is left. */
void host_group_end_handles(struct host_group *group);
