/*
 * Tests bucketing passes and merges: the reference's cases by number.
 */
#include "collective/bucketing.h"
#include "collective/graph.h"
#include "collective/merge.h"
#include "proto/error.h"
#include "tests/lib/check.h"
#include "tests/unit/collective/graph_build.h"
#include "tests/unit/collective/graph_eval.h"
#include <errno.h>
#include <string.h>

/* "a b|c": members of buckets with more than one member, or of all buckets. */
static const char *show(const struct bucketing *result, bool is_all)
{
	static char text[256];

	*text = '\0';
	for (uint32_t b = 0; b < result->n_buckets; b++) {
		const struct bucketing_bucket *bucket = &result->buckets[b];

		if (!is_all && bucket->n_members == 1)
			continue;
		strcat(text, *text ? "|" : "");
		for (uint32_t i = 0; i < bucket->n_members; i++) {
			strcat(text, i ? " " : "");
			strcat(text, bucket->members[i].name);
		}
	}
	return text;
}

static enum graph_kind kind_of(const struct graph *graph, const char *name)
{
	uint32_t i = find(graph, name);

	return i == GRAPH_NONE ? GRAPH_N_KINDS : graph->nodes[i].kind;
}

/* Returns element `i` of a node's value on a rank. */
static int64_t element(const struct eval *eval, const char *name, uint32_t rank,
		       uint64_t i)
{
	uint32_t node = find(eval->graph, name);

	cr_assert(ne(u32, node, GRAPH_NONE));
	return eval_load(eval->values[node][rank],
			 dtype_size(eval->graph->nodes[node].type.dtype), i);
}

static void check_elements(const struct eval *eval, const char *name,
			   uint32_t rank, uint64_t n, const int64_t *expected)
{
	uint32_t node = find(eval->graph, name);

	cr_assert(
		eq(u64, tensor_type_numel(&eval->graph->nodes[node].type), n));
	for (uint64_t i = 0; i < n; i++)
		cr_assert(eq(i64, element(eval, name, rank, i), expected[i]),
			  "%s[%d] on rank %u", name, (int)i, rank);
}

/* Evaluate the graph again with these values of a placeholder. With `is_same`
 * all ranks have the same values, otherwise each rank has its part of them. */
static void feed(struct eval *eval, const char *name, uint64_t n,
		 const int64_t *values, bool is_same)
{
	uint32_t i = find(eval->graph, name);
	uint32_t size = dtype_size(eval->graph->nodes[i].type.dtype);

	for (uint32_t rank = 0; rank < eval->n_ranks; rank++) {
		for (uint64_t k = 0; k < n; k++)
			eval_store(eval->values[i][rank], size, k,
				   values[is_same ? k : rank * n + k]);
	}
	for (i = 0; i < eval->graph->n_nodes; i++) {
		const struct graph_node *node = &eval->graph->nodes[i];

		for (uint32_t rank = 0; rank < eval->n_ranks; rank++) {
			if (node->kind != GRAPH_PLACEHOLDER)
				eval_node(eval, node, rank,
					  eval->values[i][rank]);
		}
	}
}

/* --- the reference's cases ----------------------------------------------- */

/* case 19 */
Test(merge, gathered_buckets_are_rank_major_on_the_wire)
{
	static const int64_t a[] = {1, 2, 3, 4}, b[] = {5, 6, 7, 8};
	static const int64_t wire[] = {1, 2, 5, 6, 3, 4, 7, 8};

	for (int mode = 0; mode < BUCKETING_N_MODES; mode++) {
		struct build build;
		struct bucketing result;
		struct eval eval;
		uint32_t pa, pb, node;

		build_init(&build, 2);
		pa = add_placeholder(&build, "A", DTYPE_F32, 2, -1);
		pb = add_placeholder(&build, "B", DTYPE_F32, 1, 2);
		add_both(&build, "a", GRAPH_ALL_GATHER, pa);
		add_both(&build, "b", GRAPH_ALL_GATHER, pb);
		result = bucket(&build, (enum bucketing_mode)mode, false);
		cr_assert(eq(str, (char *)show(&result, true), (char *)"a b"));
		eval = eval_run(&result.graph, 2);
		feed(&eval, "A", 2, a, false);
		feed(&eval, "B", 2, b, false);
		for (uint32_t rank = 0; rank < 2; rank++) {
			check_elements(&eval, "bucket_ag0_wait", rank, 8, wire);
			check_elements(&eval, "wa", rank, 4, a);
			check_elements(&eval, "wb", rank, 4, b);
		}
		node = find(&result.graph, "wb");
		cr_assert(eq(u32, result.graph.nodes[node].type.n_dims, 2));
		cr_assert(eq(i64, result.graph.nodes[node].type.shape[0], 2));
		eval_deinit(&eval);
		bucketing_deinit(&result);
		graph_deinit(&build.graph);
	}
}

/* case 20 */
Test(merge, scattered_buckets_have_a_row_for_each_rank)
{
	static const int64_t x[] = {1, 2, 3, 4}, y[] = {5, 6, 7, 8};
	static const int64_t wire[] = {1, 2, 5, 6, 3, 4, 7, 8};
	static const int64_t xs[2][2] = {{2, 4}, {6, 8}};
	static const int64_t ys[2][2] = {{10, 12}, {14, 16}};

	for (int mode = 0; mode < BUCKETING_N_MODES; mode++) {
		struct build build;
		struct bucketing result;
		struct eval eval;
		uint32_t px, py;

		build_init(&build, 2);
		px = add_placeholder(&build, "X", DTYPE_F32, 4, -1);
		py = add_placeholder(&build, "Y", DTYPE_F32, 2, 2);
		add_both(&build, "x", GRAPH_REDUCE_SCATTER, px);
		add_both(&build, "y", GRAPH_REDUCE_SCATTER, py);
		result = bucket(&build, (enum bucketing_mode)mode, false);
		cr_assert(eq(str, (char *)show(&result, true), (char *)"x y"));
		eval = eval_run(&result.graph, 2);
		feed(&eval, "X", 4, x, true);
		feed(&eval, "Y", 4, y, true);
		if (mode != BUCKETING_COALESCED)
			check_elements(&eval, "bucket_rs0_in", 0, 8, wire);
		for (uint32_t rank = 0; rank < 2; rank++) {
			check_elements(&eval, "wx", rank, 2, xs[rank]);
			check_elements(&eval, "wy", rank, 2, ys[rank]);
		}
		eval_deinit(&eval);
		bucketing_deinit(&result);
		graph_deinit(&build.graph);
	}
}

/* case 14: collectives of another kind between them do not end a run */
Test(merge, collectives_of_another_kind_do_not_end_a_run)
{
	struct build build;
	struct bucketing result;
	uint32_t pa, pb, px;

	build_init(&build, 2);
	pa = add_placeholder(&build, "A", DTYPE_BF16, 2, -1);
	pb = add_placeholder(&build, "B", DTYPE_BF16, 2, -1);
	px = add_placeholder(&build, "X", DTYPE_BF16, 2, -1);
	add_both(&build, "a", GRAPH_ALL_GATHER, pa);
	add_both(&build, "x", GRAPH_REDUCE_SCATTER, px);
	add_both(&build, "b", GRAPH_ALL_GATHER, pb);
	result = bucket(&build, BUCKETING_DEFAULT, true);
	cr_assert(eq(str, (char *)show(&result, true), (char *)"a b"));
	cr_assert(eq(u32, result.n_left, 1));
	cr_assert(eq(u32, result.left[0].fate, BUCKETING_LEFT_OVER));
	bucketing_deinit(&result);
	result = bucket(&build, BUCKETING_DEFAULT, false);
	cr_assert(eq(str, (char *)show(&result, true), (char *)"a b|x"));
	cr_assert(eq(u32, result.n_left, 0));
	cr_assert(eq(u32, kind_of(&result.graph, "x"), GRAPH_REDUCE_SCATTER));
	bucketing_deinit(&result);
	graph_deinit(&build.graph);
}

/* case 15: a0 -> a1 -> a3 */
Test(merge, dependent_collectives_are_never_in_one_bucket)
{
	struct build build;
	struct bucketing result;
	uint32_t p, w0, w1;

	build_init(&build, 1);
	p = add_placeholder(&build, "p", DTYPE_F32, 2, -1);
	w0 = add_both(&build, "a0", GRAPH_ALL_GATHER, p);
	w1 = add_both(&build, "a1", GRAPH_ALL_GATHER, w0);
	add_both(&build, "a2", GRAPH_ALL_GATHER, p);
	add_both(&build, "a3", GRAPH_ALL_GATHER, w1);
	result = bucket(&build, BUCKETING_DEFAULT, false);
	cr_assert(eq(str, (char *)show(&result, true), (char *)"a0|a1 a2|a3"));
	bucketing_deinit(&result);
	for (uint32_t i = 0; i < build.graph.n_nodes; i++) {
		if (build.graph.nodes[i].kind == GRAPH_ALL_GATHER)
			build.graph.nodes[i].tag = GRAPH_IS_FSDP;
	}
	result = bucket(&build, BUCKETING_DEFAULT, true);
	cr_assert(eq(str, (char *)show(&result, true), (char *)"a0 a2"));
	cr_assert(eq(u32, result.n_left, 2));
	bucketing_deinit(&result);
	graph_deinit(&build.graph);
}

/* case 18 */
Test(merge, a_graph_without_two_collectives_of_a_kind_is_unchanged)
{
	for (int is_faithful = 0; is_faithful < 2; is_faithful++) {
		struct build build;
		struct bucketing result;
		uint32_t p;

		build_init(&build, 2);
		result = bucket(&build, BUCKETING_DEFAULT, is_faithful);
		cr_assert(eq(u32, result.graph.n_nodes, 0));
		bucketing_deinit(&result);
		p = add_placeholder(&build, "p", DTYPE_F32, 2, -1);
		add_both(&build, "x", GRAPH_REDUCE_SCATTER, p);
		add_both(&build, "a", GRAPH_ALL_GATHER, p);
		result = bucket(&build, BUCKETING_DEFAULT, is_faithful);
		cr_assert(eq(str, (char *)show(&result, false), (char *)""));
		cr_assert(eq(u32, result.graph.n_nodes, build.graph.n_nodes));
		for (uint32_t i = 0; i < build.graph.n_nodes; i++)
			cr_assert(eq(str, result.graph.nodes[i].name,
				     build.graph.nodes[i].name));
		bucketing_deinit(&result);
		graph_deinit(&build.graph);
	}
}

static struct merge_layout lay_out(const struct build *build, bool is_padded)
{
	struct merge_layout layout;
	uint32_t waits[8], n = 0;

	for (uint32_t i = 0; i < build->graph.n_nodes; i++) {
		if (build->graph.nodes[i].kind == GRAPH_WAIT)
			waits[n++] = i;
	}
	cr_assert(zero(int, merge_layout_init(&layout, &build->graph, waits, n,
					      is_padded, NULL)));
	return layout;
}

/* case 22 */
Test(merge, a_mixed_bucket_has_the_smallest_dtype)
{
	static const uint32_t pairs[][3] = {{DTYPE_F32, DTYPE_BF16, DTYPE_BF16},
					    {DTYPE_BF16, DTYPE_F16, DTYPE_BF16},
					    {DTYPE_F16, DTYPE_BF16, DTYPE_F16}};

	for (size_t i = 0; i < sizeof(pairs) / sizeof(*pairs); i++) {
		struct merge_layout layout;
		struct build build;
		uint32_t a, b;

		build_init(&build, 2);
		a = add_placeholder(&build, "A", pairs[i][0], 2, -1);
		b = add_placeholder(&build, "B", pairs[i][1], 2, -1);
		add_both(&build, "a", GRAPH_ALL_GATHER, a);
		add_both(&build, "b", GRAPH_ALL_GATHER, b);
		layout = lay_out(&build, true);
		cr_assert(eq(u32, layout.dtype, pairs[i][2]));
		merge_layout_deinit(&layout);
		graph_deinit(&build.graph);
	}
}

/* Make three bf16 one after another, then two f32. */
static void build_mixed(struct build *build)
{
	uint32_t a, b;

	build_init(build, 2);
	a = add_placeholder(build, "A", DTYPE_BF16, 3, -1);
	b = add_placeholder(build, "B", DTYPE_F32, 2, -1);
	add_both(build, "a", GRAPH_ALL_GATHER, a);
	add_both(build, "b", GRAPH_ALL_GATHER, b);
}

Test(merge, entries_of_mixed_dtypes_are_aligned_with_zeros_between)
{
	struct bucketing result;
	struct merge_layout layout;
	struct build build;
	struct eval eval;

	build_mixed(&build);
	layout = lay_out(&build, true);
	cr_assert(eq(u64, layout.entries[1].offset, 8)); /* of bf16: byte 16 */
	cr_assert(eq(u64, layout.entries[1].length, 4));
	cr_assert(eq(u64, layout.row_size, 16));
	merge_layout_deinit(&layout);
	result = bucket(&build, BUCKETING_MULTIDTYPE, false);
	eval = eval_run(&result.graph, 2);
	for (uint64_t i = 0; i < 32; i++) {
		if (i % 16 >= 12 || (i % 16 >= 3 && i % 16 < 8))
			cr_assert(
				zero(i64, element(&eval, "bucket_ag0", 0, i)));
	}
	eval_deinit(&eval);
	bucketing_deinit(&result);
	graph_deinit(&build.graph);
}

Test(merge, a_faithful_mixed_bucket_that_cannot_be_viewed_is_refused)
{
	struct bucketing_options options = options_of(
		(struct bucketing_rule){.mode = BUCKETING_MULTIDTYPE}, true);
	struct error err = ERROR_NULL;
	struct bucketing result;
	struct build build;

	build_mixed(&build);
	cr_assert(eq(int, bucketing_run(&build.graph, &options, &result, &err),
		     -EINVAL));
	cr_assert(ne(ptr, strstr(err.msg, "'wb': it begins at byte 6"), NULL),
		  "%s", err.msg);
	graph_deinit(&build.graph);
}

Test(merge, the_multidtype_mode_keeps_reductions_apart_by_dtype)
{
	for (int is_faithful = 0; is_faithful < 2; is_faithful++) {
		struct build build;
		struct bucketing result;
		uint32_t p, q;

		build_init(&build, 2);
		p = add_placeholder(&build, "P", DTYPE_F32, 2, -1);
		q = add_placeholder(&build, "Q", DTYPE_BF16, 2, -1);
		add_both(&build, "x", GRAPH_REDUCE_SCATTER, p);
		add_both(&build, "y", GRAPH_REDUCE_SCATTER, p);
		add_both(&build, "z", GRAPH_REDUCE_SCATTER, q);
		result = bucket(&build, BUCKETING_MULTIDTYPE, is_faithful);
		cr_assert(eq(str, (char *)show(&result, false), (char *)"x y"));
		cr_assert(eq(int, result.buckets[0].form, MERGE_OPAQUE));
		bucketing_deinit(&result);
		graph_deinit(&build.graph);
	}
}

/* case 23; the refusal of two users is in test_graph.c */
Test(merge, a_convert_that_only_the_gather_uses_is_absorbed)
{
	for (int n_users = 1; n_users <= 2; n_users++) {
		struct build build;
		struct bucketing result;
		struct eval before, after;
		uint32_t p, q, c;

		build_init(&build, 2);
		p = add_placeholder(&build, "P", DTYPE_F32, 4, -1);
		q = add_placeholder(&build, "Q", DTYPE_BF16, 2, -1);
		c = add_convert(&build, "c", p, DTYPE_BF16);
		add_both(&build, "a", GRAPH_ALL_GATHER, c);
		add_both(&build, "b", GRAPH_ALL_GATHER, q);
		if (n_users == 2)
			add_op(&build, "other", 1, &c);
		result = bucket(&build, BUCKETING_CUSTOM_OPS, false);
		cr_assert(eq(u64, result.buckets[0].members[0].size, 16));
		cr_assert(eq(u32, kind_of(&result.graph, "c"),
			     n_users == 1 ? GRAPH_N_KINDS : GRAPH_CONVERT));
		before = eval_run(&build.graph, 2);
		after = eval_run(&result.graph, 2);
		for (uint64_t i = 0; i < 8; i++)
			cr_assert(eq(i64, element(&after, "wa", 1, i),
				     element(&before, "wa", 1, i)));
		eval_deinit(&before);
		eval_deinit(&after);
		bucketing_deinit(&result);
		graph_deinit(&build.graph);
	}
}

/* --- where new nodes stand, and what they are ---------------------------- */

static const char *show_order(const struct graph *graph)
{
	static char text[512];

	*text = '\0';
	for (uint32_t i = 0; i < graph->n_nodes; i++) {
		strcat(text, i ? " " : "");
		strcat(text, graph->nodes[i].name);
	}
	return text;
}

Test(merge, users_of_an_early_wait_move_after_the_merged_wait)
{
	static const char *const orders[] = {
		[BUCKETING_DEFAULT] = "A B bucket_ag0_buffer bucket_ag0_in "
				      "bucket_ag0 bucket_ag0_wait wa f wb",
		[BUCKETING_CUSTOM_OPS] = "A B bucket_ag0_in bucket_ag0 "
					 "bucket_ag0_wait wa f wb"};

	for (int mode = 0; mode <= BUCKETING_CUSTOM_OPS; mode++) {
		struct build build;
		struct bucketing result;
		uint32_t wait;

		build_init(&build, 2);
		add_placeholder(&build, "A", DTYPE_F32, 2, -1);
		add_placeholder(&build, "B", DTYPE_F32, 2, -1);
		wait = add_both(&build, "a", GRAPH_ALL_GATHER, 0);
		add_op(&build, "f", 1, &wait);
		add_both(&build, "b", GRAPH_ALL_GATHER, 1);
		result = bucket(&build, (enum bucketing_mode)mode, false);
		cr_assert(eq(str, (char *)show_order(&result.graph),
			     (char *)orders[mode]));
		bucketing_deinit(&result);
		graph_deinit(&build.graph);
	}
}

Test(merge, a_coalesced_bucket_needs_no_copies)
{
	struct build build;
	struct bucketing result;

	build_init(&build, 2);
	add_placeholder(&build, "X", DTYPE_F32, 2, -1);
	add_placeholder(&build, "Y", DTYPE_F32, 2, -1);
	add_both(&build, "x", GRAPH_REDUCE_SCATTER, 0);
	add_both(&build, "y", GRAPH_REDUCE_SCATTER, 1);
	result = bucket(&build, BUCKETING_COALESCED, false);
	cr_assert(eq(str, (char *)show_order(&result.graph),
		     (char *)"X Y bucket_rs0 wx wy"));
	cr_assert(eq(u32, result.graph.nodes[4].index, 1));
	bucketing_deinit(&result);
	graph_deinit(&build.graph);
}

Test(merge, names_that_are_taken_are_skipped)
{
	struct build build;
	struct bucketing result;

	build_init(&build, 2);
	add_placeholder(&build, "bucket_ag0_wait", DTYPE_F32, 2, -1);
	add_placeholder(&build, "bucket_ag1", DTYPE_F32, 2, -1);
	add_both(&build, "a", GRAPH_ALL_GATHER, 0);
	add_both(&build, "b", GRAPH_ALL_GATHER, 1);
	result = bucket(&build, BUCKETING_DEFAULT, false);
	cr_assert(eq(str, result.buckets[0].name, (char *)"bucket_ag2"));
	bucketing_deinit(&result);
	graph_deinit(&build.graph);
}

/* --- filters ------------------------------------------------------------- */

/* Returns the members of all merged buckets of a graph, faithful or not. */
static void check_filter(struct build *build, const char *expected)
{
	for (int is_faithful = 0; is_faithful < 2; is_faithful++) {
		struct bucketing result =
			bucket(build, BUCKETING_DEFAULT, is_faithful);

		cr_assert(eq(str, (char *)show(&result, false),
			     (char *)expected));
		bucketing_deinit(&result);
	}
}

Test(merge, gathers_of_one_placeholder_belong_to_fsdp)
{
	struct build build;
	uint32_t p, q, both[2], op;

	build_init(&build, 2);
	p = add_placeholder(&build, "P", DTYPE_F32, 2, -1);
	q = add_placeholder(&build, "Q", DTYPE_F32, 2, -1);
	both[0] = p;
	both[1] = q;
	op = add_op(&build, "sum", 2, both);
	add_both(&build, "a", GRAPH_ALL_GATHER, p);
	add_both(&build, "b", GRAPH_ALL_GATHER, op);
	add_both(&build, "c", GRAPH_ALL_GATHER,
		 add_convert(&build, "cc", q, DTYPE_F32));
	op = add_op(&build, "one", 1, &p);
	add_both(&build, "d", GRAPH_ALL_GATHER, op);
	check_filter(&build, "a c d");
	/* A tag from the caller has precedence over the filter. */
	build.graph.nodes[find(&build.graph, "b")].tag = GRAPH_IS_FSDP;
	build.graph.nodes[find(&build.graph, "c")].tag = GRAPH_IS_NOT_FSDP;
	check_filter(&build, "a b d");
	graph_deinit(&build.graph);
}

Test(merge, reduce_scatters_that_only_lead_to_the_output_belong_to_fsdp)
{
	struct build build;
	uint32_t p, wait[6], pair[2];

	build_init(&build, 2);
	p = add_placeholder(&build, "P", DTYPE_F32, 2, -1);
	for (int i = 0; i < 5; i++) {
		char name[4] = {(char)('a' + i)};

		wait[i] = add_both(&build, name, GRAPH_REDUCE_SCATTER, p);
	}
	/* The users are: a: the output, b: a convert, c: two unary operations,
	 * d: a binary operation, e: none. */
	wait[1] = add_convert(&build, "cb", wait[1], DTYPE_BF16);
	wait[2] = add_op(&build, "c1", 1, &wait[2]);
	wait[2] = add_op(&build, "c2", 1, &wait[2]);
	pair[0] = wait[3];
	pair[1] = p;
	wait[3] = add_op(&build, "dd", 2, pair);
	add_output(&build, "out", 4, wait);
	check_filter(&build, "a b c e");
	graph_deinit(&build.graph);
}

Test(merge, all_reduces_of_a_group_with_fsdp_gathers_belong_to_fsdp)
{
	struct build build;
	uint32_t p;

	build_init(&build, 2);
	p = add_placeholder(&build, "P", DTYPE_F32, 2, -1);
	add_both(&build, "r", GRAPH_ALL_REDUCE, p);
	add_both(&build, "s", GRAPH_ALL_REDUCE, p);
	check_filter(&build, "");
	add_both(&build, "a", GRAPH_ALL_GATHER, p);
	add_both(&build, "b", GRAPH_ALL_GATHER, p);
	check_filter(&build, "a b|r s");
	cr_assert(zero(int, graph_add_group(&build.graph, "other", 2,
					    &build.group, NULL)));
	add_both(&build, "t", GRAPH_ALL_REDUCE, p);
	add_both(&build, "u", GRAPH_ALL_REDUCE, p);
	check_filter(&build, "a b|r s");
	build.graph.nodes[find(&build.graph, "t")].tag = GRAPH_IS_FSDP;
	build.graph.nodes[find(&build.graph, "u")].tag = GRAPH_IS_FSDP;
	check_filter(&build, "a b|r s|t u");
	graph_deinit(&build.graph);
}

Test(merge, invalid_caps_are_refused)
{
	static const double caps[] = {1, -1};
	struct bucketing_options options = options_of(
		(struct bucketing_rule){.caps_mb = caps, .n_caps = 2}, false);
	struct error err = ERROR_NULL;
	struct bucketing result;
	struct build build;

	build_init(&build, 2);
	cr_assert(eq(int, bucketing_run(&build.graph, &options, &result, &err),
		     -EINVAL));
	cr_assert(ne(ptr, strstr(err.msg, "a cap of -1 MiB"), NULL));
	graph_deinit(&build.graph);
}
