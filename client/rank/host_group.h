/*
 * A rank on host memory that works itself needs the plan of the group, as the
 * broker has it.
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
	uint32_t index;              /* among the run's groups */
	uint64_t n_reductions;       /* that this rank has handed in */
	/* After these: do the partial sums wait for an all-reduce, and do the
	 * gradients hold a sum? */
	bool has_partial, has_grads;
};

/* Takes the plan, also on failure. `index`: among the run's groups. */
int host_group_new(struct fsdp_group *group, struct plan *plan, uint32_t index,
		   struct error *err);
void host_group_free(struct host_group *group); /* NULL is fine */

/* Does the group have trained parameters, even without elements? */
bool host_group_has_gradients(const struct host_group *group);

/* Checks that the broker's memory is as large as the plan says: -EPROTO. */
int host_group_check_memory(const struct fsdp_group *group, struct error *err);

/* Call this before the run is left. */
void host_group_end_handles(struct host_group *group);
