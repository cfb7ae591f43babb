/*
 * Inputs: memory in which a rank hands in its gradients of a group.
 *
 * An input is pinned from the moment a rank gets it, so that its slot cannot be
 * reused while the group refers to it. It counts against the rank's n_inputs
 * until its reduction is done.
 *
 * Where the ranks reduce without the broker, they use an input again and again,
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
	/* All inputs that the rank may have are being reduced; `err` says so
	 * (-ETIMEDOUT), for a caller that gives up. */
	INPUT_WAIT = 1,
};

/* May the rank get an input of the group now? -EINVAL: the group has no
 * gradients. -EBUSY: the rank fills one already, or as many as it may have. */
int input_check(const struct group *group, uint32_t rank, struct error *err);

/* Give this slot to the rank as its input, and pin it. */
void input_add(struct group *group, uint32_t rank, uint32_t slot);

/* The run is over: unpin the inputs that ranks fill or keep. */
void inputs_release(struct comm *comm);

/* --- where the ranks reduce without the broker --------------------------- */

/* May the rank keep one more? -EINVAL: the group has no gradients. -EBUSY. */
int input_check_kept(const struct group *group, uint32_t rank,
		     struct error *err);
void input_keep(struct comm *comm, uint32_t rank, uint32_t slot);

/* Does any rank keep it? */
bool input_is_kept(const struct comm *comm, uint32_t slot);

/* The rank gives it back. -ENOENT: it does not keep it. */
int input_end(struct comm *comm, uint32_t rank, uint32_t slot,
	      struct error *err);
