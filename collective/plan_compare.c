/*
 * This file finds where two ranks' registrations differ. The hash only shows
 * that they differ; this produces a sentence by which a user can find the line
 * in a script. Registrations are equal here if their hashes are equal
 * (plan_hash.c).
 */
#include "collective/plan.h"
#include "proto/error.h"
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define TEXT_SIZE 192

struct comparison {
	const char *whose;
	struct error *err;
};

/* Writes, for example: parameter "w" has the dtype f32 here, but bf16 on rank
 * 0. */
static int differ(const struct comparison *with, const char *name,
		  const char *what, const char *mine, const char *theirs)
{
	return error_set(with->err, -EINVAL,
			 "parameter \"%s\" has the %s %s here, but %s on %s",
			 name, what, mine, theirs, with->whose);
}

static void print_shape(const struct tensor_type *type, char *text)
{
	int n = snprintf(text, TEXT_SIZE, "[");

	for (uint32_t i = 0; i < type->n_dims; i++)
		n += snprintf(text + n, TEXT_SIZE - (size_t)n, "%s%" PRId64,
			      i ? ", " : "", type->shape[i]);
	(void)snprintf(text + n, TEXT_SIZE - (size_t)n, "]");
}

static bool is_same_shape(const struct tensor_type *a,
			  const struct tensor_type *b)
{
	return a->n_dims == b->n_dims &&
	       !memcmp(a->shape, b->shape, a->n_dims * sizeof(*a->shape));
}

/* Returns the dimension along which the parameter is cut. A 0-d parameter is
 * cut as if it were 1-d. */
static int32_t dim_of(const struct plan_param *param)
{
	int32_t n_dims = (int32_t)param->type.n_dims;

	if (param->shard_dim >= 0)
		return param->shard_dim;
	return param->shard_dim + (n_dims ? n_dims : 1);
}

static int compare_shape(const struct comparison *with,
			 const struct plan_param *mine,
			 const struct plan_param *theirs)
{
	char my_text[TEXT_SIZE], their_text[TEXT_SIZE];

	assert(mine->type.n_dims <= TENSOR_MAX_DIMS);
	assert(theirs->type.n_dims <= TENSOR_MAX_DIMS);
	if (!is_same_shape(&mine->type, &theirs->type)) {
		print_shape(&mine->type, my_text);
		print_shape(&theirs->type, their_text);
		return differ(with, mine->name, "shape", my_text, their_text);
	}
	if (dim_of(mine) != dim_of(theirs)) {
		(void)snprintf(my_text, TEXT_SIZE, "%d", dim_of(mine));
		(void)snprintf(their_text, TEXT_SIZE, "%d", dim_of(theirs));
		return differ(with, mine->name, "shard dimension", my_text,
			      their_text);
	}
	return 0;
}

static int compare_param(const struct comparison *with, uint32_t i,
			 const struct plan_param *mine,
			 const struct plan_param *theirs)
{
	int r;

	if (strcmp(mine->name, theirs->name) != 0)
		return error_set(
			with->err, -EINVAL,
			"parameter %u is \"%s\" here, but \"%s\" on %s; all "
			"ranks must give the same names in the same order",
			i, mine->name, theirs->name, with->whose);
	if (mine->type.dtype != theirs->type.dtype)
		return differ(with, mine->name, "dtype",
			      dtype_name(mine->type.dtype),
			      dtype_name(theirs->type.dtype));
	r = compare_shape(with, mine, theirs);
	if (r < 0)
		return r;
	if (mine->is_frozen != theirs->is_frozen)
		return error_set(with->err, -EINVAL,
				 "parameter \"%s\" is %s here, but %s on %s",
				 mine->name,
				 mine->is_frozen ? "frozen" : "trainable",
				 theirs->is_frozen ? "frozen" : "trainable",
				 with->whose);
	return 0;
}

/* Returns the error if one list is longer than the other. */
static int compare_counts(const struct comparison *with,
			  const struct plan_param *mine, uint32_t n_mine,
			  const struct plan_param *theirs, uint32_t n_theirs)
{
	if (n_mine > n_theirs)
		return error_set(with->err, -EINVAL,
				 "parameter %u, \"%s\", is here, but not on %s",
				 n_theirs, mine[n_theirs].name, with->whose);
	if (n_mine < n_theirs)
		return error_set(with->err, -EINVAL,
				 "parameter %u, \"%s\", is on %s, but not here",
				 n_mine, theirs[n_mine].name, with->whose);
	return 0;
}

static int compare_words(const struct comparison *with, const char *what,
			 const char *mine, const char *theirs)
{
	if (strcmp(mine, theirs) == 0)
		return 0;
	return error_set(with->err, -EINVAL, "the %s is %s here, but %s on %s",
			 what, mine, theirs, with->whose);
}

static int compare_caps(const struct comparison *with, const char *what,
			const double *mine, uint32_t n_mine,
			const double *theirs, uint32_t n_theirs)
{
	if (n_mine != n_theirs)
		return error_set(with->err, -EINVAL,
				 "there are %u caps of %s buckets here, but %u "
				 "on %s",
				 n_mine, what, n_theirs, with->whose);
	for (uint32_t i = 0; i < n_mine; i++) {
		if (mine[i] == theirs[i])
			continue;
		return error_set(with->err, -EINVAL,
				 "the cap of %s bucket %u is %.17g MiB here, "
				 "but %.17g MiB on %s",
				 what, i, mine[i], theirs[i], with->whose);
	}
	return 0;
}

static const char *dtype_word(uint32_t dtype)
{
	return dtype ? dtype_name(dtype) : "not set";
}

static const char *layout_word(enum plan_layout layout)
{
	return layout == PLAN_FLAT ? "flat" : "in place";
}

static const char *place_word(bool is_per_rank)
{
	return is_per_rank ? "devices" : "host memory";
}

static const char *offload_word(bool is_offloaded)
{
	return is_offloaded ? "in host memory" : "on devices";
}

static const char *use_word(bool stays_unsharded)
{
	return stays_unsharded ? "to stay unsharded" : "to be resharded";
}

static int compare_policy(const struct comparison *with,
			  const struct plan_policy *mine,
			  const struct plan_policy *theirs)
{
	int r = compare_words(with, "param dtype",
			      dtype_word(mine->param_dtype),
			      dtype_word(theirs->param_dtype));

	if (r >= 0)
		r = compare_words(with, "input dtype",
				  dtype_word(mine->input_dtype),
				  dtype_word(theirs->input_dtype));
	if (r >= 0)
		r = compare_words(with, "reduce dtype",
				  dtype_word(mine->reduce_dtype),
				  dtype_word(theirs->reduce_dtype));
	if (r >= 0)
		r = compare_words(with, "layout", layout_word(mine->layout),
				  layout_word(theirs->layout));
	if (r >= 0)
		r = compare_words(with, "memory", place_word(mine->is_per_rank),
				  place_word(theirs->is_per_rank));
	if (r >= 0)
		r = compare_words(with, "place of the shards",
				  offload_word(mine->is_offloaded),
				  offload_word(theirs->is_offloaded));
	if (r >= 0)
		r = compare_caps(with, "gather", mine->gather_caps_mb,
				 mine->n_gather_caps, theirs->gather_caps_mb,
				 theirs->n_gather_caps);
	if (r >= 0)
		r = compare_caps(with, "reduce", mine->reduce_caps_mb,
				 mine->n_reduce_caps, theirs->reduce_caps_mb,
				 theirs->n_reduce_caps);
	if (r >= 0)
		r = compare_words(with, "group",
				  use_word(mine->stays_unsharded),
				  use_word(theirs->stays_unsharded));
	return r;
}

int plan_compare(const struct plan_param *mine, uint32_t n_mine,
		 const struct plan_policy *my_policy,
		 const struct plan_param *theirs, uint32_t n_theirs,
		 const struct plan_policy *their_policy, const char *whose,
		 struct error *err)
{
	const struct comparison with = {.whose = whose, .err = err};
	int r;

	for (uint32_t i = 0; i < n_mine && i < n_theirs; i++) {
		r = compare_param(&with, i, &mine[i], &theirs[i]);
		if (r < 0)
			return r;
	}
	r = compare_counts(&with, mine, n_mine, theirs, n_theirs);
	if (r < 0)
		return r;
	return compare_policy(&with, my_policy, their_policy);
}
