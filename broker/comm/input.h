/*
 * Inputs: memory in which a rank submits its gradients of a group.
 *
 * An input is pinned from the moment a rank gets it, so that its slot cannot be
 * reused while the group refers to it. It counts against the rank's n_inputs
 * until its reduction is done.
 *
 * If the ranks reduce without the broker, they use an input again and again,
 * for any group. It is pinned until its rank gives it back or the run is over,
 * so that other ranks can get it at any time before.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct comm;
struct error;
struct group;

enum input_outcome {
	INPUT_OK = 0,
	/* All inputs that the rank may have are being reduced. `err` is set
	 * (-ETIMEDOUT) for a caller that gives up. */
	INPUT_WAIT = 1,
};

/* Check that the rank may get an input of the group now. Returns -EINVAL if the
 * group has no gradients, and -EBUSY if the rank fills one already, or as many
 * as it may have. */
int input_check(const struct group *group, uint32_t rank, struct error *err);

/* Give this slot to the rank as its input, and pin it. */
void input_add(struct group *group, uint32_t rank, uint32_t slot);

/* Unpin the inputs that ranks fill or keep, since the run is over. */
void inputs_release(struct comm *comm);

/* --- where the ranks reduce without the broker --------------------------- */

/* Check that the rank may keep one more input. Returns -EINVAL if the group has
 * no gradients, and -EBUSY if the rank has as many as it may have. */
int input_check_kept(const struct group *group, uint32_t rank,
		     struct error *err);
void input_keep(struct comm *comm, uint32_t rank, uint32_t slot);

/* Returns whether any rank keeps the slot as an input. */
bool input_is_kept(const struct comm *comm, uint32_t slot);

/* Release an input that the rank gives back. Returns -ENOENT if the rank does
 * not keep it. */
int input_end(struct comm *comm, uint32_t rank, uint32_t slot,
	      struct error *err);
