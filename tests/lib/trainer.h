/*
 * A rank as tests want it: it joins, registers layers, fills its shards with
 * values that follow from layer, parameter, element and step, and can say
 * whether what it sees whole is right.
 *
 * Values are small whole numbers, which every dtype of the tests holds exactly;
 * so do the means of gradients over 1, 2 and 4 ranks.
 *
 * With FSDP_TEST_DEVICES set in the environment all of it is on devices: one
 * for each rank, as far as there are so many; with FSDP_TEST_HOME=worker
 * fsdp-worker does the work, with FSDP_TEST_OFFLOAD what lasts is the host's.
 *
 * The crew is set before ranks_start(); everything else is for a rank's own
 * process, and gives 0 or a negative code, with its sentence noted.
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
	struct fsdp_work works[TRAINER_MAX_LAYERS]; /* of the last unshard */
	uint64_t step;                              /* committed */
};
struct trainer *trainer(void);

/* Connect if that was not done, join, register all layers. */
int trainer_join(void);
/* Leave, and close the connection. */
int trainer_leave(void);
/* Fill all `next` with the values of the next step, commit it, wait. */
int trainer_commit(void);

/* Unshard and wait; what is whole must then be of the committed step. */
int trainer_unshard(size_t layer);
int trainer_reshard(size_t layer);

/* Is every parameter whole and of the committed step? Says on stderr what is
 * not. */
bool trainer_sees_whole(size_t layer);

/* Take an input, and write the gradients of that round into it. */
int trainer_fill_input(size_t layer, uint32_t round);
/* The same, reduce, and wait if `waits`. */
int trainer_reduce(size_t layer, uint32_t round,
		   const struct fsdp_reduce_options *options, bool waits);

/* What a rank's gradient has at an element. */
double gradient_of(uint32_t rank, size_t param, uint64_t index, uint32_t round);

/* Is this rank's shard of every gradient what `expect` says? */
typedef double expect_fn(size_t param, uint64_t index);
bool trainer_sees_gradients(size_t layer, expect_fn *expect);
