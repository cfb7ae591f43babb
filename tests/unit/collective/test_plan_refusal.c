/*
 * Tests that invalid plans are refused, and that ranks whose plans differ are
 * told what differs.
 */
#include "collective/plan.h"
#include "proto/error.h"
#include "tests/lib/check.h"
#include "tests/unit/collective/plan_build.h"
#include <errno.h>
#include <math.h>
#include <string.h>

/* --- hashes -------------------------------------------------------------- */

struct registration {
	struct plan_param params[3];
	uint32_t n;
	struct plan_policy policy;
};

static struct registration make_registration(void)
{
	return (struct registration){
		.params = {PARAM("a", DTYPE_F32, 2, 8, 4),
			   PARAM("b", DTYPE_F32, 2, 8, 4),
			   PARAM("c", DTYPE_F32, 1, 8)},
		.n = 2,
		.policy = {.n_gather_caps = 1, .gather_caps_mb = {1}},
	};
}

static void rename_b(struct registration *r)
{
	r->params[1].name = "x";
}
static void retype_b(struct registration *r)
{
	r->params[1].type.dtype = DTYPE_I32;
}
static void reshape_b(struct registration *r)
{
	r->params[1].type = PARAM("", DTYPE_F32, 2, 4, 8).type;
}
static void flatten_b(struct registration *r)
{
	r->params[1].type = PARAM("", DTYPE_F32, 1, 32).type;
}
static void turn_b(struct registration *r)
{
	r->params[1].shard_dim = -1;
}
static void freeze_b(struct registration *r)
{
	r->params[1].is_frozen = true;
}
static void add_c(struct registration *r)
{
	r->n = 3;
}
static void drop_b(struct registration *r)
{
	r->n = 1;
}
static void cast_params(struct registration *r)
{
	r->policy.param_dtype = DTYPE_BF16;
}
static void cast_inputs(struct registration *r)
{
	r->policy.input_dtype = DTYPE_F32; /* as they are */
}
static void cast_grads(struct registration *r)
{
	r->policy.reduce_dtype = DTYPE_BF16;
}
static void flatten(struct registration *r)
{
	r->policy.layout = PLAN_FLAT;
}
static void add_cap(struct registration *r)
{
	r->policy.gather_caps_mb[r->policy.n_gather_caps++] = 1;
}
static void change_cap(struct registration *r)
{
	r->policy.gather_caps_mb[0] = 2;
}
static void cap_reductions(struct registration *r)
{
	r->policy.n_reduce_caps = 1;
	r->policy.reduce_caps_mb[0] = 4000; /* changes no bucket */
}
static void stay(struct registration *r)
{
	r->policy.stays_unsharded = true;
}

/* Rank 1 changes its registration in this way, and is told this sentence. */
static const struct {
	void (*change)(struct registration *);
	const char *sentence;
} changes[] = {
	{rename_b, "parameter 1 is \"x\" here, but \"b\" on rank 0"},
	{retype_b, "\"b\" has the dtype i32 here, but f32 on rank 0"},
	{reshape_b, "\"b\" has the shape [4, 8] here, but [8, 4] on rank 0"},
	{flatten_b, "\"b\" has the shape [32] here, but [8, 4] on rank 0"},
	{turn_b, "\"b\" has the shard dimension 1 here, but 0 on rank 0"},
	{freeze_b, "\"b\" is frozen here, but trainable on rank 0"},
	{add_c, "parameter 2, \"c\", is here, but not on rank 0"},
	{drop_b, "parameter 1, \"b\", is on rank 0, but not here"},
	{cast_params, "param dtype is bf16 here, but not set on rank 0"},
	{cast_inputs, "input dtype is f32 here, but not set on rank 0"},
	{cast_grads, "reduce dtype is bf16 here, but not set on rank 0"},
	{flatten, "layout is flat here, but in place on rank 0"},
	{add_cap, "2 caps of gather buckets here, but 1 on rank 0"},
	{change_cap, "cap of gather bucket 0 is 2 MiB here, but 1 MiB on"},
	{cap_reductions, "1 caps of reduce buckets here, but 0 on rank 0"},
	{stay, "group is to stay unsharded here, but to be resharded on"},
};

static uint64_t hash_of(const struct registration *r, uint32_t n_shards,
			uint32_t n_replicas)
{
	struct plan plan =
		make(r->params, r->n, &r->policy, n_shards, n_replicas);
	uint64_t hash = plan.hash;

	plan_deinit(&plan);
	return hash;
}

static int compare(const struct registration *mine,
		   const struct registration *theirs, struct error *err)
{
	return plan_compare(mine->params, mine->n, &mine->policy,
			    theirs->params, theirs->n, &theirs->policy,
			    "rank 0", err);
}

Test(plan_refusal, every_difference_changes_the_hash_and_is_reported)
{
	const struct registration theirs = make_registration();

	for (size_t i = 0; i < sizeof(changes) / sizeof(*changes); i++) {
		struct registration mine = make_registration();
		struct error err = ERROR_NULL;

		changes[i].change(&mine);
		cr_expect(ne(u64, hash_of(&mine, 2, 2), hash_of(&theirs, 2, 2)),
			  "change %zu", i);
		cr_expect(eq(int, compare(&mine, &theirs, &err), -EINVAL));
		cr_expect(strstr(err.msg, changes[i].sentence) != NULL,
			  "\"%s\" has no \"%s\"", err.msg, changes[i].sentence);
	}
}

Test(plan_refusal, equivalent_registrations_have_the_same_hash)
{
	struct registration mine = make_registration();
	struct registration theirs = make_registration();
	char name[] = "a";

	mine.params[0].name = name; /* another pointer */
	mine.params[0].shard_dim = -2;
	mine.params[1].shard_dim = 1;
	theirs.params[1].shard_dim = -1;
	mine.policy.gather_caps_mb[0] = -0.0;
	theirs.policy.gather_caps_mb[0] = 0;
	mine.policy.gather_caps_mb[5] = 7; /* not counted */
	cr_assert(eq(u64, hash_of(&mine, 2, 2), hash_of(&theirs, 2, 2)));
	cr_assert(zero(int, compare(&mine, &theirs, NULL)));
}

Test(plan_refusal, another_mesh_has_another_hash)
{
	const struct registration mine = make_registration();

	cr_assert(ne(u64, hash_of(&mine, 2, 2), hash_of(&mine, 4, 1)));
	cr_assert(ne(u64, hash_of(&mine, 2, 2), hash_of(&mine, 2, 1)));
	cr_assert(ne(u64, hash_of(&mine, 2, 2), 0));
}

/* --- refusals ------------------------------------------------------------ */

static void check_refused(const struct registration *r, uint32_t n_shards,
			  uint32_t n_replicas, int code, const char *word)
{
	struct plan plan = {.hash = 77};
	struct error err = ERROR_NULL;

	cr_expect(eq(int,
		     plan_make(r->params, r->n, &r->policy, n_shards,
			       n_replicas, &plan, &err),
		     code));
	cr_expect(strstr(err.msg, word) != NULL, "\"%s\" has no \"%s\"",
		  err.msg, word);
	cr_expect(eq(u64, plan.hash, 77), "written on failure");
}

Test(plan_refusal, a_mesh_has_1_to_64_ranks)
{
	const struct registration r = make_registration();

	check_refused(&r, 0, 1, -EINVAL, "no ranks");
	check_refused(&r, 1, 0, -EINVAL, "no ranks");
	check_refused(&r, 13, 5, -EINVAL, "more than 64");
	check_refused(&r, UINT32_MAX, UINT32_MAX, -EINVAL, "more than 64");
}

Test(plan_refusal, parameters_must_have_unique_names)
{
	struct registration r = make_registration();

	r.params[1].name = "a";
	check_refused(&r, 2, 1, -EINVAL, "two parameters are named \"a\"");
	r.params[1].name = "";
	check_refused(&r, 2, 1, -EINVAL, "parameter 1 has no name");
	r.params[1].name = NULL;
	check_refused(&r, 2, 1, -EINVAL, "parameter 1 has no name");
	r.n = 0;
	check_refused(&r, 2, 1, -EINVAL, "0 parameters");
	r.n = PLAN_MAX_PARAMS + 1;
	check_refused(&r, 2, 1, -EINVAL, "1025 parameters");
}

Test(plan_refusal, the_error_names_a_parameter_that_cannot_be_sharded)
{
	struct registration r = make_registration();

	r.params[1].shard_dim = 1;
	check_refused(&r, 3, 1, -EINVAL, "\"b\": dimension 1");
	r.params[1].shard_dim = 7;
	check_refused(&r, 2, 1, -EINVAL, "\"b\": it has no dimension 7");
	r.params[1].shard_dim = 0;
	r.params[1].type.strides[0] = 1;
	check_refused(&r, 2, 1, -EINVAL, "\"b\": it is not contiguous");
}

Test(plan_refusal, casts_between_kinds_are_refused)
{
	struct registration r = make_registration();

	r.policy.param_dtype = DTYPE_I32;
	check_refused(&r, 2, 1, -EINVAL,
		      "\"a\": f32 cannot be cast to the param");
	r.policy.param_dtype = DTYPE_F8_E4M3;
	check_refused(&r, 2, 1, -EINVAL, "param dtype f8_e4m3");
	r.policy.param_dtype = 99;
	check_refused(&r, 2, 1, -EINVAL, "param dtype 99");
	r.policy.param_dtype = 0;
	r.policy.reduce_dtype = DTYPE_I64;
	check_refused(&r, 2, 1, -EINVAL,
		      "\"a\": f32 cannot be cast to the reduce");
	r.policy.reduce_dtype = UINT32_MAX;
	check_refused(&r, 2, 1, -EINVAL, "reduce dtype 4294967295");
	r.policy.reduce_dtype = 0;
	r.policy.input_dtype = DTYPE_U8;
	check_refused(&r, 2, 1, -EINVAL,
		      "\"a\": f32 cannot be cast to the input");
	r.policy.input_dtype = 98;
	check_refused(&r, 2, 1, -EINVAL, "input dtype 98");
}

Test(plan_refusal, an_8_bit_float_is_refused_under_a_param_dtype)
{
	struct registration r = make_registration();

	r.params[1].type.dtype = DTYPE_F8_E4M3;
	r.params[1].is_frozen = true;
	cr_expect(ne(u64, hash_of(&r, 2, 1), 0));
	r.policy.param_dtype = DTYPE_BF16;
	check_refused(&r, 2, 1, -EINVAL,
		      "\"b\": f8_e4m3 cannot be cast to the param dtype bf16: "
		      "casts are between f16, bf16, f32 and f64; put it in a "
		      "group without a param dtype");
}

Test(plan_refusal, the_error_names_a_gradient_that_cannot_be_reduced)
{
	const uint32_t dtypes[] = {DTYPE_BOOL, DTYPE_F8_E5M2, DTYPE_C64};

	for (size_t i = 0; i < 3; i++) {
		struct registration r = make_registration();

		r.params[1].type.dtype = dtypes[i];
		check_refused(&r, 2, 1, -EINVAL, "\"b\": its gradient");
		r.params[1].is_frozen = true;
		cr_expect(ne(u64, hash_of(&r, 2, 1), 0));
	}
}

Test(plan_refusal, invalid_policies_are_refused)
{
	struct registration r = make_registration();

	r.policy.gather_caps_mb[0] = NAN;
	check_refused(&r, 2, 1, -EINVAL, "gather bucket 0");
	r.policy.gather_caps_mb[0] = 0;
	r.policy.n_reduce_caps = 2;
	r.policy.reduce_caps_mb[1] = -1;
	check_refused(&r, 2, 1, -EINVAL, "reduce bucket 1");
	r.policy.n_reduce_caps = PLAN_MAX_CAPS + 1;
	check_refused(&r, 2, 1, -EINVAL, "17 caps of reduce");
	r.policy.n_reduce_caps = 0;
	r.policy.layout = 2;
	check_refused(&r, 2, 1, -EINVAL, "layout 2");
}

Test(plan_refusal, groups_whose_sizes_overflow_are_refused)
{
	struct registration r = make_registration();

	/* Each parameter fits. Both together fit with one replica, but not with
	 * four. */
	r.params[0].type = PARAM("", DTYPE_F16, 1, INT64_C(1) << 58).type;
	r.params[1].type = r.params[0].type;
	cr_expect(ne(u64, hash_of(&r, 2, 1), 0));
	check_refused(&r, 2, 4, -EOVERFLOW, "with parameter \"b\"");
	/* The parameter fits as it is stored, but not after the cast. */
	r.n = 1;
	r.params[0].type = PARAM("", DTYPE_F16, 1, INT64_C(1) << 60).type;
	r.policy.param_dtype = DTYPE_F64;
	check_refused(&r, 2, 1, -EOVERFLOW, "with parameter \"a\"");
	r.policy.param_dtype = 0;
	r.policy.reduce_dtype = DTYPE_F64;
	check_refused(&r, 2, 1, -EOVERFLOW, "with parameter \"a\"");
}
