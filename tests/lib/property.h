/*
 * Random groups on random meshes, every value in them, and the results that a
 * reduction must give: the arithmetic of docs/fsdp.md, written one element at a
 * time (scalar.h), and the same in f64. A case follows from its seed, so every
 * rank can draw it by itself and knows the values of all other ranks.
 */
#pragma once
#include "client/fsdp.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MAX_WORLD  6
#define MAX_GROUPS 3
#define MAX_PARAMS 6
#define MAX_ROUNDS 3 /* most reductions of a group in a step */
#define N_STEPS    3

/* --- cases --------------------------------------------------------------- */

struct param_case {
	char name[24];
	struct fsdp_param_spec spec;
	uint32_t dim; /* nonnegative */
	uint64_t numel;
	enum fsdp_dtype full, input, reduce; /* the last two are 0 if frozen */
	/* values have any bits; otherwise they are numbers near 1 */
	bool is_wild;
};

struct group_case {
	char name[24];
	struct fsdp_policy policy;
	size_t n;
	struct param_case params[MAX_PARAMS];
	bool has_integers; /* has gradients of integers that are reduced */
	struct fsdp_reduce_options options; /* have divide factors only */
	bool is_trained;
};

struct round_case {
	struct fsdp_reduce_options options;
	bool waits;
};

struct step_case {
	uint32_t order[MAX_GROUPS]; /* the order of unshards */
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

/* The case must not be moved, because it contains pointers to its names. */
void case_draw(uint64_t seed, struct property_case *ret);

/* --- values -------------------------------------------------------------- */

uint64_t mix(uint64_t x);

/* A value is a function of this position. */
struct location {
	const struct property_case *it;
	size_t group, param;
	uint64_t index, step;
	uint32_t who;   /* replica of a parameter, or rank of a gradient */
	uint32_t round; /* 0 for a parameter, 1 or more for a gradient */
};

/* Returns the bits of a parameter's value, in its stored dtype. */
uint64_t value_of_param(struct location *location, uint32_t replica,
			uint64_t step);
/* Returns the bits of a rank's gradient, in the input dtype. */
uint64_t value_of_gradient(struct location *location, uint32_t rank);

/* --- reductions ---------------------------------------------------------- */

enum op { SUM, AVG };

/* One row of the table of divide factors. */
struct factors {
	double pre, premul, post;
	uint64_t scatter, all_reduce; /* enum op; excludes padding */
};

struct factors factors_of(const struct property_case *it,
			  enum fsdp_dtype reduce,
			  const struct fsdp_reduce_options *options);

/* A run remembers this for each element of each rank's shard. */
struct element {
	uint64_t grad;               /* bits, in the stored dtype */
	uint64_t partial[MAX_WORLD]; /* by replica; bits, in the reduce dtype */
	/* The same values in f64, and the sums of absolute values, from which
	 * the bound of the error follows. */
	double oracle, partial_oracle, size, partial_size;
};

/* The inputs of a reduction. */
struct reduction {
	const struct property_case *it;
	const struct param_case *param;
	const struct fsdp_reduce_options *options;
	struct factors factors;
	struct location location;
	bool is_put_off, has_partial, has_grads;
};

/* Computes the element after the reduction, exactly and in f64. */
void reduction_apply(struct reduction *reduction, struct element *element);
