/*
 * Tests that no bucketing pass in any mode changes the results of a random
 * graph.
 */
#include "collective/bucketing.h"
#include "collective/graph.h"
#include "collective/merge.h"
#include "proto/error.h"
#include "tests/lib/check.h"
#include "tests/unit/collective/graph_build.h"
#include "tests/unit/collective/graph_eval.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t random_state;

static uint32_t pick(uint32_t n)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return (uint32_t)((random_state >> 20) % n);
}

static uint32_t pick_dtype(void)
{
	static const uint32_t dtypes[] = {DTYPE_BF16, DTYPE_BF16, DTYPE_F32,
					  DTYPE_F32,  DTYPE_F16,  DTYPE_U8,
					  DTYPE_F64,  DTYPE_C128};

	return dtypes[pick(sizeof(dtypes) / sizeof(*dtypes))];
}

#define MAX_OPEN 6

struct random_graph {
	struct build build;
	uint32_t groups[2];
	uint32_t usable[256], n_usable;  /* nodes with a value */
	uint32_t open[MAX_OPEN], n_open; /* collectives without a wait */
	uint32_t n_names;
};

static const char *next_name(struct random_graph *random)
{
	static char name[16];

	snprintf(name, sizeof(name), "n%u", random->n_names++);
	return name;
}

static void use(struct random_graph *random, uint32_t node)
{
	random->usable[random->n_usable++] = node;
}

/* These are shapes that a reduce-scatter can divide, some without elements. */
static struct tensor_type pick_type(const struct random_graph *random)
{
	struct tensor_type type = {.dtype = pick_dtype(),
				   .n_dims = 1 + pick(2)};

	type.shape[0] = (int64_t)(pick(4) * random->build.n_ranks);
	type.shape[1] = 1 + pick(3);
	return type;
}

static void add_random_op(struct random_graph *random)
{
	uint32_t inputs[3], n = 1 + pick(8) / 7;
	struct graph_node node = {.kind = GRAPH_OP,
				  .call = (char *)"op",
				  .n_inputs = n,
				  .inputs = inputs,
				  .type = pick_type(random),
				  .group = GRAPH_NONE};

	for (uint32_t i = 0; i < n; i++)
		inputs[i] = random->usable[pick(random->n_usable)];
	use(random, add_node(&random->build, node, next_name(random)));
}

static void close_one(struct random_graph *random)
{
	uint32_t i = pick(random->n_open);

	use(random,
	    add_wait(&random->build, next_name(random), random->open[i]));
	random->open[i] = random->open[--random->n_open];
}

/* Choose placeholders in most cases, so that the filters accept some
 * collectives. */
static void add_random_collective(struct random_graph *random)
{
	static const enum graph_kind kinds[] = {
		GRAPH_ALL_GATHER, GRAPH_REDUCE_SCATTER, GRAPH_ALL_REDUCE};
	enum graph_kind kind = kinds[pick(3)];
	uint32_t in =
		random->usable[pick(4) ? pick(6) : pick(random->n_usable)];
	struct build *build = &random->build;
	uint32_t node;

	if (type_of(build, in)->shape[0] > 64)
		return;
	/* A scattered tensor may not be divisible by the number of ranks any
	 * more. */
	if (type_of(build, in)->shape[0] % build->n_ranks)
		kind = GRAPH_ALL_REDUCE;
	if (pick(3) == 0) {
		in = add_convert(build, next_name(random), in, pick_dtype());
		if (pick(3) == 0)
			use(random, in);
	}
	build->group = random->groups[pick(4) == 0];
	node = add_start(build, next_name(random), kind, in);
	if (pick(3) == 0 && kind != GRAPH_ALL_GATHER)
		build->graph.nodes[node].reduce =
			(enum graph_reduce)(1 + pick(GRAPH_N_REDUCES - 1));
	if (pick(3) == 0)
		build->graph.nodes[node].tag = (enum graph_tag)pick(3);
	random->open[random->n_open++] = node;
}

static void add_outputs(struct random_graph *random)
{
	uint32_t inputs[8];

	for (uint32_t i = 0; i < 8; i++)
		inputs[i] = random->usable[pick(random->n_usable)];
	add_output(&random->build, "out", 8, inputs);
}

/* A graph has few dtypes, so that runs of one dtype are long. */
static void build_random(struct random_graph *random, uint64_t seed)
{
	uint32_t n_steps;

	random_state = seed * 0x9e3779b97f4a7c15 + 1;
	*random = (struct random_graph){0};
	build_init(&random->build, 1 + pick(4));
	random->groups[0] = random->build.group;
	cr_assert(zero(int, graph_add_group(&random->build.graph, "h",
					    random->build.n_ranks,
					    &random->groups[1], NULL)));
	for (int i = 0; i < 6; i++) {
		struct graph_node node = {.kind = GRAPH_PLACEHOLDER,
					  .type = pick_type(random),
					  .group = GRAPH_NONE};

		use(random, add_node(&random->build, node, next_name(random)));
	}
	n_steps = pick(60);
	for (uint32_t i = 0; i < n_steps; i++) {
		if (random->n_open == MAX_OPEN ||
		    (random->n_open && pick(3) == 0))
			close_one(random);
		else if (pick(4) == 0)
			add_random_op(random);
		else
			add_random_collective(random);
	}
	while (random->n_open)
		close_one(random);
	add_outputs(random);
}

/* Check that nodes with the same name have the same values in both graphs, and
 * that the outputs come from the same nodes. */
static void check_same(const struct eval *before, const struct eval *after,
		       uint64_t seed, int mode)
{
	struct graph_index index;

	cr_assert(zero(int, graph_index_init(&index, after->graph, NULL)));
	for (uint32_t i = 0; i < before->graph->n_nodes; i++) {
		const struct graph_node *node = &before->graph->nodes[i];
		uint32_t k = graph_index_find(&index, node->name);

		if (node->kind == GRAPH_WAIT || node->kind == GRAPH_OUTPUT ||
		    node->kind == GRAPH_OP)
			cr_assert(ne(u32, k, GRAPH_NONE));
		if (k == GRAPH_NONE)
			continue;
		for (uint32_t rank = 0; rank < before->n_ranks; rank++)
			cr_assert(zero(int, memcmp(before->values[i][rank],
						   after->values[k][rank],
						   graph_bytes(node))),
				  "'%s' of seed %d, mode %d", node->name,
				  (int)seed, mode);
		for (uint32_t j = 0;
		     node->kind == GRAPH_OUTPUT && j < node->n_inputs; j++)
			cr_assert(eq(str,
				     before->graph->nodes[node->inputs[j]].name,
				     after->graph
					     ->nodes[after->graph->nodes[k]
							     .inputs[j]]
					     .name));
	}
	graph_index_deinit(&index);
}

/* 8.2.5: every collective is in one bucket or, if a filter rejected it, in
 * none. */
static void check_complete(const struct graph *graph,
			   const struct bucketing *result)
{
	uint32_t *n_seen = calloc(graph->n_nodes, sizeof(*n_seen));

	for (uint32_t b = 0; b < result->n_buckets; b++) {
		const struct bucketing_bucket *bucket = &result->buckets[b];

		cr_assert(gt(u32, bucket->n_members, 0));
		for (uint32_t i = 0; i < bucket->n_members; i++)
			n_seen[find(graph, bucket->members[i].name)]++;
	}
	for (uint32_t i = 0; i < result->n_left; i++) {
		cr_assert(eq(u32, result->left[i].fate, BUCKETING_FILTERED));
		n_seen[find(graph, result->left[i].name)]++;
	}
	for (uint32_t i = 0; i < graph->n_nodes; i++)
		cr_assert(eq(u32, n_seen[i],
			     graph_is_collective(graph->nodes[i].kind)));
	free(n_seen);
}

/* 8.2.6: entries lie one after another, each at a multiple of its size. */
static void check_layouts(const struct bucketing *result)
{
	for (uint32_t b = 0; b < result->n_buckets; b++) {
		const struct merge_layout *layout = &result->buckets[b].layout;
		uint64_t unit = dtype_size(layout->dtype), end = 0;

		for (uint32_t i = 0; i < layout->n_entries; i++) {
			const struct graph_entry *entry = &layout->entries[i];

			cr_assert(ge(u64, entry->offset, end));
			cr_assert(zero(u64, entry->offset * unit %
						    dtype_size(entry->dtype)));
			end = entry->offset + entry->length;
		}
		cr_assert(le(u64, end, layout->row_size));
	}
}

static void check_seed(uint64_t seed, int mode, bool is_faithful)
{
	static const double caps[] = {0.0001, 0, 0.0003, 2000};
	/* Every second seed has different rules for reductions. */
	struct bucketing_options options = {
		.gather = {(enum bucketing_mode)mode, caps + seed % 4, 1},
		.reduce = {(enum bucketing_mode)((mode + (int)(seed % 2)) %
						 BUCKETING_N_MODES),
			   caps + (seed / 2) % 4, 1},
		.is_faithful = is_faithful};
	struct random_graph random;
	struct bucketing result;
	struct error err = ERROR_NULL;
	struct eval before, after;
	int r;

	build_random(&random, seed);
	r = bucketing_run(&random.build.graph, &options, &result, &err);
	if (r < 0) {
		/* without padding, an entry cannot be viewed */
		cr_assert(is_faithful && mode == BUCKETING_MULTIDTYPE, "%s",
			  err.msg);
		graph_deinit(&random.build.graph);
		return;
	}
	before = eval_run(&random.build.graph, random.build.n_ranks);
	after = eval_run(&result.graph, random.build.n_ranks);
	check_same(&before, &after, seed, mode);
	if (!is_faithful) {
		check_complete(&random.build.graph, &result);
		check_layouts(&result);
	}
	eval_deinit(&before);
	eval_deinit(&after);
	bucketing_deinit(&result);
	graph_deinit(&random.build.graph);
}

Test(merge_random, no_pass_changes_what_a_graph_computes)
{
	for (uint64_t seed = 0; seed < 300; seed++) {
		for (int mode = 0; mode < BUCKETING_N_MODES; mode++) {
			check_seed(seed, mode, false);
			check_seed(seed, mode, true);
		}
	}
}

/* Merged graphs are valid graphs, so they can be written, read, and bucketed
 * again. */
Test(merge_random, a_rewritten_graph_can_be_rewritten)
{
	for (uint64_t seed = 0; seed < 100; seed++) {
		struct bucketing_options options = options_of(
			(struct bucketing_rule){
				.mode = (enum bucketing_mode)(
					seed % BUCKETING_N_MODES)},
			false);
		struct random_graph random;
		struct bucketing once, twice;
		struct eval before, after;

		build_random(&random, seed);
		cr_assert(zero(int, bucketing_run(&random.build.graph, &options,
						  &once, NULL)));
		cr_assert(zero(int, bucketing_run(&once.graph, &options, &twice,
						  NULL)));
		before = eval_run(&once.graph, random.build.n_ranks);
		after = eval_run(&twice.graph, random.build.n_ranks);
		check_same(&before, &after, seed, -1);
		eval_deinit(&before);
		eval_deinit(&after);
		bucketing_deinit(&once);
		bucketing_deinit(&twice);
		graph_deinit(&random.build.graph);
	}
}
