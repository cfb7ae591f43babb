/*
 * Inputs, if the ranks reduce without the broker: those of this rank, and its
 * mappings of the inputs of other ranks.
 *
 * A rank keeps its inputs from one reduction to the next, of any group. It asks
 * the broker only for memory that it does not have: one more input, a larger
 * one, or an input of another rank that it has not mapped yet. The run pins the
 * inputs, and each process that works with one holds it. So the memory is not
 * used again while a rank that has not noticed the end of the run works with
 * it.
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
	struct fsdp_tensor *tensor; /* owned; NULL: unused */
};

struct inputs {
	/* number of inputs that this rank may have, and has */
	uint32_t n_max, n;
	struct own_input own[BOARD_MAX_AHEAD];
	struct other_input *others; /* owned; n_max of each rank */
	uint32_t next_victim;
	/* number of recalls of the board that were followed */
	uint32_t n_recalls;
};

/* Prepare for `n_max` inputs of each rank. Returns -ENOMEM if there is no
 * memory. */
int inputs_init(struct inputs *inputs, uint32_t n_ranks, uint32_t n_max,
		struct error *err);
/* Drop the holds of all inputs. */
void inputs_end_handles(struct inputs *inputs, uint32_t n_ranks);
void inputs_deinit(struct inputs *inputs);

/*
 * Take an input that is large enough for the group and not in use. It remains
 * owned by `comm`. Returns -EBUSY if all are in use, and -ETIMEDOUT if there is
 * no memory.
 */
int inputs_take(struct fsdp_comm *comm, const struct fsdp_group *group,
		int64_t until_ns, struct fsdp_tensor **ret, struct error *err);

/* Mark an input as not in use. */
void inputs_free(struct inputs *inputs, const struct fsdp_tensor *input);

/* Find the memory that a rank has submitted for the group. `ref` comes from its
 * cell, and is not trusted. */
int inputs_find(struct fsdp_comm *comm, const struct fsdp_group *group,
		uint32_t rank, const struct slot_ref *ref, const uint8_t **ret,
		struct error *err);

/* Find the memory of the group's partial sums. */
int inputs_find_partial(struct fsdp_group *group, struct error *err);
