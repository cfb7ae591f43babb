/*
 * A rank whose training has a result that is known to the last bit.
 *
 * Values are small whole numbers, which f32 and bf16 hold exactly, as they do
 * every sum. Gradients follow from the whole parameters that a rank sees: what
 * was wrong in one step makes all later ones wrong. A rank that is told
 * -ECONNABORTED leaves, joins again and goes on, until the last step.
 *
 * What must hold whatever dies, each rank checks itself, and ends the process
 * if it does not: all groups are of one step, which never goes back and which
 * all ranks have written; nothing but -ECONNABORTED is said.
 */
#pragma once
#include "client/fsdp.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define EXACT_MAX_RANKS 8
#define EXACT_GROUPS    3
#define EXACT_PARAMS    3
#define EXACT_NUMEL     40 /* of a parameter, at most */
#define EXACT_LOST      3

/* --- what must come out -------------------------------------------------- */

struct exact_model {
	uint64_t step; /* 0: nothing is there */
	float values[EXACT_GROUPS][EXACT_PARAMS][EXACT_NUMEL];
};

/* On to that step of a training by `world` ranks. */
void exact_advance(struct exact_model *model, uint32_t world, uint64_t step);

/* --- ranks --------------------------------------------------------------- */

/* Of one rank; shared. */
struct exact_rank {
	_Atomic pid_t pid;
	atomic_uint n_calls;         /* of the library, in all its lives */
	_Atomic(const char *) doing; /* the present one, for who asks */
	_Atomic uint64_t committing; /* the last step that it wanted */
	atomic_uint n_failures;
	char sentence[512]; /* of the last one */
	atomic_bool is_finished;
};

/* Shared by the ranks and the test; zero, but for what the test sets. */
struct exact_board {
	/* set before the ranks start */
	const char *socket, *comm;
	uint32_t world, n_shards;
	/* Called in a rank before each of its calls of the library. */
	void (*on_call)(uint32_t rank, uint32_t n);
	/* May memory and descriptors run out? Then a rank that is refused
	 * leaves and joins again, and one that loses its session ends with
	 * EXACT_LOST. */
	bool is_harsh;

	_Atomic uint64_t last_step; /* where training ends; may grow smaller,
				     * down to two above max_step */
	_Atomic uint64_t max_step;  /* that a rank knows to be committed */
	struct exact_rank ranks[EXACT_MAX_RANKS];
};

/* A rank's whole life, in a process of its own. Comes back when the last step
 * was seen whole by this rank, or by one that has left since. */
void exact_train(struct exact_board *board, uint32_t rank);
