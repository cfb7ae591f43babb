/*
 * A rank for tests. It joins, registers layers, fills its shards with values
 * that follow from layer, parameter, element and step, and can check the whole
 * parameters that it sees.
 *
 * Values are small integers, which all dtypes of the tests represent exactly,
 * as they do the means of gradients over 1, 2 and 4 ranks.
 *
 * If FSDP_TEST_DEVICES is set in the environment, everything is on devices, one
 * for each rank as far as there are enough. If FSDP_TEST_EXECUTOR=worker is
 * set, fsdp-worker does the work. If FSDP_TEST_OFFLOAD is set, shards and
 * gradients are in host memory.
 *
 * The crew is set before ranks_start(). Everything else is for a rank's own
 * process. The functions return 0 or a negative code, whose sentence they note.
 */
#pragma once
#include "tests/lib/memory.h"
#include "tests/lib/ranks.h"
#include <stdbool.h>

#define TRAINER_MAX_LAYERS 5

struct layer {
	const char *name;
	const struct fsdp_param_spec *params;
	size_t n;
	struct fsdp_policy policy;
};

struct crew {
	struct daemon *daemon;
	const char *comm;
	struct fsdp_comm_options options;
	const struct layer *layers;
	size_t n_layers;
};
void crew_set(const struct crew *crew);

struct trainer {
	struct fsdp_client *client;
	struct fsdp_comm *comm;
	struct fsdp_group *groups[TRAINER_MAX_LAYERS];
	/* works of the last unshard */
	struct fsdp_work works[TRAINER_MAX_LAYERS];
	uint64_t step; /* the last committed step */
};
struct trainer *trainer(void);

/* Connects if that was not done yet, joins, and registers all layers. */
int trainer_join(void);
/* Does the same, and joins again while the other ranks are late, because a
 * test's time-out can be short for the sake of a later call. */
int trainer_join_patiently(void);
/* Leaves, and closes the connection. */
int trainer_leave(void);
/* Fills all `next` with the values of the next step, commits it, and waits. */
int trainer_commit(void);

/* These begin to unshard; wait for it; or do both. Parameters that are whole
 * must then be of the committed step. */
int trainer_begin(size_t layer);
int trainer_await(size_t layer);
int trainer_unshard(size_t layer);
int trainer_reshard(size_t layer);

/* Returns whether all parameters are whole and of the committed step. Prints on
 * stderr those that are not. */
bool trainer_sees_whole(size_t layer);

/* Takes an input, and writes the gradients of that round into it. */
int trainer_fill_input(size_t layer, uint32_t round);
/* Does the same, starts the reduction, and waits for it if `waits`. */
int trainer_reduce(size_t layer, uint32_t round,
		   const struct fsdp_reduce_options *options, bool waits);

/* Returns the value of a rank's gradient at an element. */
double gradient_of(uint32_t rank, size_t param, uint64_t index, uint32_t round);

/* Returns whether this rank's shard of every gradient has the values of
 * `expect`. */
typedef double expect_fn(size_t param, uint64_t index);
bool trainer_sees_gradients(size_t layer, expect_fn *expect);
