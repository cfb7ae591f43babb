/*
 * Random groups on random meshes, every value in them, and what a reduction
 * must make of those: the arithmetic of docs/fsdp.md, written one element at a
 * time (scalar.h), and the same in f64.
 *
 * All of a case follows from its seed, so that every rank can draw it by
 * itself and knows what every other one writes.
 */
#pragma once
#include "client/fsdp.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MAX_WORLD  6
#define MAX_GROUPS 3
#define MAX_PARAMS 6
#define MAX_ROUNDS 3 /* reductions of a group in a step */
#define N_STEPS    3

/* --- cases --------------------------------------------------------------- */

struct param_case {
	char name[24];
	struct fsdp_param_spec spec;
	uint32_t dim; /* not negative */
	uint64_t numel;
	enum fsdp_dtype full, input, reduce; /* the last two 0: frozen */
	bool is_wild; /* any bits, else numbers about 1 */
};

struct group_case {
	char name[24];
	struct fsdp_policy policy;
	size_t n;
	struct param_case params[MAX_PARAMS];
	bool has_integers;                  /* that are reduced */
	struct fsdp_reduce_options options; /* factors only */
	bool is_trained;
};

struct round_case {
	struct fsdp_reduce_options options;
	bool waits;
};

struct step_case {
	uint32_t order[MAX_GROUPS]; /* of unshards */
	uint32_t n_mesh[MAX_GROUPS];
	uint32_t n_rounds[MAX_GROUPS];
	struct round_case rounds[MAX_GROUPS][MAX_ROUNDS];
};

struct property_case {
	uint64_t seed;
	uint32_t world, n_shards, n_replicas;
	struct fsdp_comm_options options;
	size_t n_groups;
	struct group_case groups[MAX_GROUPS];
	struct step_case steps[N_STEPS];
};

/* Names are in there: it may not be moved. */
void case_draw(uint64_t seed, struct property_case *ret);

/* --- values -------------------------------------------------------------- */

uint64_t mix(uint64_t x);

/* Which element of what: a value is a function of this. */
struct spot {
	const struct property_case *it;
	size_t group, param;
	uint64_t index, step;
	uint32_t who;   /* replica of a parameter, rank of a gradient */
	uint32_t round; /* 0: a parameter; else a gradient, from 1 */
};

/* Bits of the dtype: of a parameter in the stored one ... */
uint64_t value_of_param(struct spot *spot, uint32_t replica, uint64_t step);
/* ... and of a rank's gradient, in that of inputs. */
uint64_t value_of_gradient(struct spot *spot, uint32_t rank);

/* --- reductions ---------------------------------------------------------- */

enum op { SUM, AVG };

/* A line of the table of divide factors. */
struct factors {
	double pre, premul, post;
	uint64_t scatter, all_reduce; /* enum op; without holes */
};

struct factors factors_of(const struct property_case *it,
			  enum fsdp_dtype reduce,
			  const struct fsdp_reduce_options *options);

/* Of one element of one rank's shard, all that a run remembers. */
struct element {
	uint64_t grad;               /* bits, stored dtype */
	uint64_t partial[MAX_WORLD]; /* by replica; bits, reduce dtype */
	/* In f64: the same, and the sum of absolute values, for the bound. */
	double oracle, partial_oracle, size, partial_size;
};

/* What goes into a reduction. */
struct reduction {
	const struct property_case *it;
	const struct param_case *param;
	const struct fsdp_reduce_options *options;
	struct factors factors;
	struct spot spot;
	bool is_put_off, has_partial, has_grads;
};

/* The element as it is after the reduction, to the bit and in f64. */
void reduction_apply(struct reduction *reduction, struct element *element);
