/*
 * The training of these ranks has a result that is known to the last bit.
 * Values are small integers, which f32 and bf16 represent exactly, as they do
 * all sums of them. Gradients follow from the whole parameters that a rank
 * sees, so an error in one step makes all later steps wrong.
 *
 * A rank that gets -ECONNABORTED leaves, joins again and continues until the
 * last step. Each rank itself checks the conditions that must hold whichever
 * process dies, and ends the process if one does not hold: all groups have the
 * same step, which never decreases and which all ranks have written; no error
 * but -ECONNABORTED is reported.
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
#define EXACT_NUMEL     40 /* largest number of elements of a parameter */
#define EXACT_LOST      3

/* --- what must come out -------------------------------------------------- */

struct exact_model {
	uint64_t step; /* 0 before the first step */
	float values[EXACT_GROUPS][EXACT_PARAMS][EXACT_NUMEL];
};

/* --- ranks --------------------------------------------------------------- */

/* State of one rank, in shared memory. */
struct exact_rank {
	_Atomic pid_t pid;
	atomic_uint n_calls; /* calls of the library in all lives of the rank */
	_Atomic(const char *) doing; /* the present call, for reports */
	/* the last step whose commit it has begun */
	_Atomic uint64_t committing;
	atomic_uint n_failures;
	char sentence[512]; /* sentence of the last failure */
	atomic_bool is_finished;
};

/* The ranks and the test share it. It is zero, except for what the test
 * sets. */
struct exact_board {
	/* These are set before the ranks start. */
	const char *socket, *comm;
	uint32_t world, n_shards;
	/* Each rank calls this before each of its calls of the library. */
	void (*on_call)(uint32_t rank, uint32_t n);
	/* Set if memory and descriptors may run out. A rank that is refused
	 * then leaves and joins again, and a rank that loses its session ends
	 * with EXACT_LOST. */
	bool is_harsh;

	/* Training ends at this step. It may be reduced while ranks run, to at
	 * least max_step + 2. */
	_Atomic uint64_t last_step;
	/* the last step that is known to be committed */
	_Atomic uint64_t max_step;
	struct exact_rank ranks[EXACT_MAX_RANKS];
};

/* Runs a rank in a process of its own, until this rank, or one that has left
 * since, has seen the last step whole. */
void exact_train(struct exact_board *board, uint32_t rank);
