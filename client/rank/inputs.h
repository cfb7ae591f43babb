/*
 * Inputs where the ranks reduce without the broker: this rank's, and what it
 * has of those of others.
 *
 * A rank keeps its inputs from one reduction to the next, of any group, and
 * asks the broker only for what it has not: for one more, for a larger one, or
 * for another rank's that it has not seen yet. The run pins them, and whoever
 * works with one holds it, so that memory is not used again under the hands of
 * a rank that has not heard of the end of the run yet.
 */
#pragma once
#include "proto/message.h"
#include "shm/board.h"
#include <stdbool.h>
#include <stdint.h>

struct error;
struct fsdp_comm;
struct fsdp_group;
struct fsdp_tensor;

struct own_input {
	struct fsdp_tensor *tensor; /* owned */
	bool is_used;               /* it is filled or reduced */
};

struct other_input {
	struct slot_ref ref;
	struct fsdp_tensor *tensor; /* owned; NULL: free */
};

struct inputs {
	uint32_t n_max, n; /* that this rank may have, and has */
	struct own_input own[BOARD_MAX_AHEAD];
	struct other_input *others; /* owned; n_max of each rank */
	uint32_t next_victim;
	uint32_t n_recalls; /* of the board, that were heeded */
};

int inputs_init(struct inputs *inputs, uint32_t n_ranks, uint32_t n_max,
		struct error *err);
/* Their holds go back. */
void inputs_end_handles(struct inputs *inputs, uint32_t n_ranks);
void inputs_deinit(struct inputs *inputs);

/*
 * An input that is large enough for the group and not used, to be used; it
 * stays ours. -EBUSY: all are used. -ETIMEDOUT: there is no memory.
 */
int inputs_take(struct fsdp_comm *comm, const struct fsdp_group *group,
		int64_t until_ns, struct fsdp_tensor **ret, struct error *err);

/* Memory is short: give back what is not used, and let go of all that others
 * have handed in. What is said of it is the run's end. */
int inputs_give_back(struct fsdp_comm *comm, struct error *err);

/* Give back what the broker has asked for, if it has; nothing where ranks do
 * not reduce themselves. */
int inputs_heed(struct fsdp_comm *comm, struct error *err);

/* It is used no more. */
void inputs_free(struct inputs *inputs, const struct fsdp_tensor *input);

/* The memory that a rank has handed in for the group, as its cell says, which
 * is not trusted. */
int inputs_find(struct fsdp_comm *comm, const struct fsdp_group *group,
		uint32_t rank, const struct slot_ref *ref, const uint8_t **ret,
		struct error *err);

/* The group's partial sums. */
int inputs_find_partial(struct fsdp_group *group, struct error *err);
