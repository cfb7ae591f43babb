/*
 * Tests that the graphs of docs/graphs/ are all valid, in all modes, and that
 * bucketing changes them as docs/graph.md says.
 */
#include "collective/bucketing.h"
#include "collective/graph_json.h"
#include "proto/error.h"
#include "tests/lib/check.h"
#include "tests/unit/collective/graph_build.h"
#include "tests/unit/collective/graph_eval.h"

#include <errno.h>
#include <glob.h>
#include <jansson.h>
#include <stdio.h>

#define GRAPHS FSDP_SOURCE_DIR "/docs/graphs/"

static struct graph read_graph(const char *path)
{
	struct error err = ERROR_NULL;
	struct graph graph;

	cr_assert(zero(int, graph_json_read_file(path, &graph, &err)), "%s",
		  err.msg);
	return graph;
}

/* Returns the buckets and the offsets of their entries, as "all_gather bf16: a
 * b; ...". */
static const char *show(const struct bucketing *result)
{
	static char text[512];
	size_t at = 0;

	*text = '\0';
	for (uint32_t b = 0; b < result->n_buckets; b++) {
		const struct bucketing_bucket *bucket = &result->buckets[b];
		uint32_t unit = dtype_size(bucket->layout.dtype);

		at += (size_t)snprintf(text + at, sizeof(text) - at,
				       "%s%s %s:", b ? "; " : "",
				       graph_kind_name(bucket->kind),
				       dtype_name(bucket->layout.dtype));
		for (uint32_t i = 0; i < bucket->n_members; i++)
			at += (size_t)snprintf(
				text + at, sizeof(text) - at, " %s@%d",
				bucket->members[i].name,
				(int)bucket->layout.entries[i].offset *
					(int)unit);
	}
	return text;
}

static void check_plan(const char *name, enum bucketing_mode mode,
		       bool is_faithful, const char *expected)
{
	struct bucketing_options options =
		options_of((struct bucketing_rule){.mode = mode}, is_faithful);
	struct graph graph = read_graph(name);
	struct error err = ERROR_NULL;
	struct bucketing result;

	cr_assert(zero(int, bucketing_run(&graph, &options, &result, &err)),
		  "%s", err.msg);
	cr_assert(eq(str, (char *)show(&result), (char *)expected));
	bucketing_deinit(&result);
	graph_deinit(&graph);
}

Test(bucketing, two_layers_need_one_gather_and_one_reduce_scatter)
{
	static const char plan[] =
		"all_gather bf16: gather_w1@0 gather_w2@2048; "
		"reduce_scatter bf16: scatter_w2@0 scatter_w1@2048";

	for (int mode = 0; mode < BUCKETING_N_MODES; mode++)
		check_plan(GRAPHS "two_layers.json", (enum bucketing_mode)mode,
			   false, plan);
	check_plan(GRAPHS "two_layers.json", BUCKETING_DEFAULT, true, plan);
}

Test(bucketing, mixed_dtypes_share_a_bucket_only_in_the_multidtype_mode)
{
	check_plan(GRAPHS "mixed_dtypes.json", BUCKETING_CUSTOM_OPS, false,
		   "all_gather bf16: gather_bias@0; all_gather f32: "
		   "gather_scale@0; all_gather bf16: gather_weight@0");
	check_plan(GRAPHS "mixed_dtypes.json", BUCKETING_MULTIDTYPE, false,
		   "all_gather bf16: gather_bias@0 gather_scale@16 "
		   "gather_weight@32");
	check_plan(GRAPHS "mixed_dtypes.json", BUCKETING_CUSTOM_OPS, true, "");
}

Test(bucketing, replicas_are_reduced_in_two_buckets)
{
	static const char plan[] =
		"all_gather f32: gather_w1@0 gather_w2@128; "
		"reduce_scatter f32: scatter_w2@0 scatter_w1@128; "
		"all_reduce f32: replicate_w2@0 replicate_w1@128; "
		"all_reduce f32: reduce_norm2@0 reduce_norm1@32";

	check_plan(GRAPHS "all_reduce.json", BUCKETING_DEFAULT, false, plan);
	check_plan(GRAPHS "all_reduce.json", BUCKETING_DEFAULT, true, plan);
}

/* The result of one reduction is gathered in a bucket that also has another
 * gather. */
Test(bucketing, a_bucket_of_gathers_leaves_reductions_to_fsdp)
{
#define F32   "\"dtype\": \"f32\", \"shape\": "
#define GROUP ", \"group\": \"g\", \"group_size\": 2"
	static const char text[] =
		"{\"nodes\": ["
		"{\"name\": \"p\", \"kind\": \"placeholder\", " F32 "[4]},"
		"{\"name\": \"q\", \"kind\": \"placeholder\", " F32 "[4]},"
		"{\"name\": \"rp\", \"kind\": \"reduce_scatter\", \"inputs\": "
		"[\"p\"], \"reduce\": \"sum\", " F32 "[2]" GROUP "},"
		"{\"name\": \"wp\", \"kind\": \"wait\", \"inputs\": "
		"[\"rp\"], " F32 "[2]},"
		"{\"name\": \"rq\", \"kind\": \"reduce_scatter\", \"inputs\": "
		"[\"q\"], \"reduce\": \"sum\", " F32 "[2]" GROUP "},"
		"{\"name\": \"wq\", \"kind\": \"wait\", \"inputs\": "
		"[\"rq\"], " F32 "[2]},"
		"{\"name\": \"g\", \"kind\": \"all_gather\", \"inputs\": "
		"[\"wp\"]"
		", " F32 "[4]" GROUP "},"
		"{\"name\": \"v\", \"kind\": \"wait\", \"inputs\": "
		"[\"g\"], " F32 "[4]},"
		"{\"name\": \"h\", \"kind\": \"all_gather\", \"inputs\": "
		"[\"q\"], " F32 "[8]" GROUP "},"
		"{\"name\": \"w\", \"kind\": \"wait\", \"inputs\": "
		"[\"h\"], " F32 "[8]},"
		"{\"name\": \"out\", \"kind\": \"output\", \"inputs\": "
		"[\"v\", \"w\", \"wq\"]}]}";
	struct bucketing_options options =
		options_of((struct bucketing_rule){0}, false);
	struct error err = ERROR_NULL;
	struct bucketing result;
	struct graph graph;

	cr_assert(zero(int,
		       graph_json_read(text, sizeof(text) - 1, &graph, &err)),
		  "%s", err.msg);
	cr_assert(zero(int, bucketing_run(&graph, &options, &result, &err)));
	cr_expect(eq(str, (char *)show(&result),
		     (char *)"all_gather f32: g@0 h@8; "
			     "reduce_scatter f32: rp@0 rq@8"));
	bucketing_deinit(&result);
	options.is_faithful = true;
	cr_assert(zero(int, bucketing_run(&graph, &options, &result, &err)));
	cr_expect(eq(str, (char *)show(&result),
		     (char *)"all_gather f32: g@0 h@8"));
	bucketing_deinit(&result);
	graph_deinit(&graph);
#undef F32
#undef GROUP
}

Test(bucketing, gathers_and_reductions_have_separate_rules)
{
	static const double none = 0;
	struct bucketing_options options = {
		.gather = {.caps_mb = &none, .n_caps = 1},
		.reduce = {.mode = BUCKETING_COALESCED}};
	struct graph graph = read_graph(GRAPHS "two_layers.json");
	struct bucketing result;

	cr_assert(zero(int, bucketing_run(&graph, &options, &result, NULL)));
	cr_assert(eq(str, (char *)show(&result),
		     (char *)"all_gather bf16: gather_w1@0; all_gather bf16: "
			     "gather_w2@0; reduce_scatter bf16: scatter_w2@0 "
			     "scatter_w1@2048"));
	cr_assert(eq(int, result.buckets[2].form, MERGE_LISTED));
	bucketing_deinit(&result);
	options = (struct bucketing_options){
		.gather = {.mode = BUCKETING_CUSTOM_OPS},
		.reduce = {.caps_mb = &none, .n_caps = 1}};
	cr_assert(zero(int, bucketing_run(&graph, &options, &result, NULL)));
	cr_assert(eq(u32, result.n_buckets, 3));
	cr_assert(eq(int, result.buckets[0].form, MERGE_OPAQUE));
	cr_assert(eq(u32, result.buckets[0].n_members, 2));
	bucketing_deinit(&result);
	graph_deinit(&graph);
}

/* Check that reading gives what was written, for every kind of node. */
static void check_round_trip(const struct graph *graph)
{
	json_t *document = graph_json_write(graph), *again;
	char *text = json_dumps(document, JSON_INDENT(1));
	struct error err = ERROR_NULL;
	struct graph copy;

	cr_assert(zero(int, graph_json_read(text, strlen(text), &copy, &err)),
		  "%s", err.msg);
	again = graph_json_write(&copy);
	cr_assert(json_equal(document, again));
	json_decref(document);
	json_decref(again);
	graph_deinit(&copy);
	free(text);
}

static void check_meaning(const struct graph *before_graph,
			  const struct graph *after_graph)
{
	uint32_t n_ranks = before_graph->groups[0].size;
	struct eval before = eval_run(before_graph, n_ranks);
	struct eval after = eval_run(after_graph, n_ranks);
	struct graph_index index;

	cr_assert(zero(int, graph_index_init(&index, after_graph, NULL)));
	for (uint32_t i = 0; i < before_graph->n_nodes; i++) {
		const struct graph_node *node = &before_graph->nodes[i];
		uint32_t k = graph_index_find(&index, node->name);

		for (uint32_t rank = 0; k != GRAPH_NONE && rank < n_ranks;
		     rank++)
			cr_assert(zero(int, memcmp(before.values[i][rank],
						   after.values[k][rank],
						   graph_bytes(node))),
				  "%s", node->name);
	}
	graph_index_deinit(&index);
	eval_deinit(&before);
	eval_deinit(&after);
}

static void check_modes(const char *path)
{
	struct graph graph = read_graph(path);

	for (int mode = 0; mode < 2 * BUCKETING_N_MODES; mode++) {
		struct bucketing_options options = options_of(
			(struct bucketing_rule){
				.mode = (enum bucketing_mode)(mode / 2)},
			mode % 2);
		struct bucketing result;
		int r = bucketing_run(&graph, &options, &result, NULL);

		if (options.is_faithful && strstr(path, "mixed_dtypes") &&
		    options.gather.mode == BUCKETING_MULTIDTYPE) {
			/* without padding, an entry cannot be viewed */
			cr_assert(eq(int, r, -EINVAL));
			continue;
		}
		cr_assert(zero(int, r), "%s", path);
		check_round_trip(&result.graph);
		check_meaning(&graph, &result.graph);
		bucketing_deinit(&result);
	}
	graph_deinit(&graph);
}

Test(bucketing, all_examples_compute_the_same_in_all_modes)
{
	glob_t paths;

	cr_assert(zero(int, glob(GRAPHS "*.json", 0, NULL, &paths)));
	cr_assert(ge(sz, paths.gl_pathc, 3));
	for (size_t i = 0; i < paths.gl_pathc; i++)
		check_modes(paths.gl_pathv[i]);
	globfree(&paths);
}
