/*
 * Measures how the work of `fsdpctl plan` grows with the graph. It counts the
 * basic blocks that run: the compiler makes each of them call a function of
 * ours (the sources under test are compiled with -fsanitize-coverage=trace-pc),
 * so the result is the same on any machine.
 */
#include "collective/graph_json.h"
#include "tests/unit/collective/graph_build.h"

#include <jansson.h>
#include <stdlib.h>

static uint64_t n_blocks;

void __sanitizer_cov_trace_pc(void);
void __sanitizer_cov_trace_pc(void)
{
	n_blocks++;
}

#define N_SMALL 500
#define N_LARGE 8000

enum shape {
	/* every parameter is gathered, and all gradients are reduced */
	INDEPENDENT,
	CHAIN, /* every collective needs the previous one */
	N_SHAPES
};

static const char *name_of(const char *prefix, uint32_t i)
{
	static char names[2][32];
	static int turn;

	turn = !turn;
	snprintf(names[turn], sizeof(names[turn]), "%s%u", prefix, i);
	return names[turn];
}

/* Add placeholder, convert, gather and wait; in a chain, the previous wait
 * replaces the placeholder. */
static uint32_t add_gather(struct build *build, uint32_t i, uint32_t before,
			   enum shape shape)
{
	uint32_t in[2] = {
		add_placeholder(build, name_of("p", i), DTYPE_F32, 2, 2),
		before};

	if (shape == CHAIN && before != GRAPH_NONE)
		in[0] = add_op(build, name_of("f", i), 2, in);
	in[0] = add_convert(build, name_of("c", i), in[0], DTYPE_BF16);
	return add_both(build, name_of("g", i), GRAPH_ALL_GATHER, in[0]);
}

/* The graph has 9 or 10 nodes each, of which 3 are collectives. */
static void make_graph(struct build *build, enum shape shape, uint32_t n_nodes)
{
	uint32_t n = n_nodes / 10, last = GRAPH_NONE;
	uint32_t *outputs = calloc(n, sizeof(*outputs));

	build_init(build, 2);
	for (uint32_t i = 0; i < n; i++)
		last = add_gather(build, i, last, shape);
	for (uint32_t i = 0; i < n; i++) {
		uint32_t scatter = add_both(build, name_of("s", i),
					    GRAPH_REDUCE_SCATTER, last);

		outputs[i] = add_both(build, name_of("r", i), GRAPH_ALL_REDUCE,
				      scatter);
		if (shape == CHAIN)
			last = add_op(build, name_of("n", i), 1, &last);
	}
	add_output(build, "out", n, outputs);
	free(outputs);
}

/* Convert the text of a graph to the text of the result, as the verb does. */
static uint64_t count_work(enum shape shape, uint32_t n_nodes,
			   const struct bucketing_options *options)
{
	struct bucketing result;
	struct build build;
	struct graph graph;
	json_t *document;
	uint64_t n;
	char *text;

	make_graph(&build, shape, n_nodes);
	document = graph_json_write(&build.graph);
	text = json_dumps(document, JSON_COMPACT);
	json_decref(document);
	n_blocks = 0;
	cr_assert(zero(int, graph_json_read(text, strlen(text), &graph, NULL)));
	cr_assert(zero(int, bucketing_run(&graph, options, &result, NULL)));
	document = graph_json_write(&result.graph);
	n = n_blocks;
	json_decref(document);
	bucketing_deinit(&result);
	graph_deinit(&graph);
	graph_deinit(&build.graph);
	free(text);
	return n;
}

/* Sixteen times the nodes may need up to twenty-four times the work: sorts by
 * name have 1.4 times as many rounds, and grow no faster than that. */
static void check_growth(enum shape shape, double cap_mb, bool is_faithful)
{
	struct bucketing_rule rule = {.caps_mb = &cap_mb, .n_caps = 1};
	struct bucketing_options options = options_of(rule, is_faithful);
	uint64_t small = count_work(shape, N_SMALL, &options);
	uint64_t large = count_work(shape, N_LARGE, &options);

	cr_assert(gt(u64, small, N_SMALL));
	cr_assert(le(u64, large, 24 * small),
		  "shape %d, cap %g, faithful %d: %lu blocks, then %lu",
		  (int)shape, cap_mb, is_faithful, (unsigned long)small,
		  (unsigned long)large);
}

Test(bucketing_work, grows_in_proportion_to_the_nodes)
{
	/* The modes are: all in one bucket, pairs, and each alone. */
	static const double caps_mb[] = {2000, 0.00004, 0};

	for (int shape = 0; shape < N_SHAPES; shape++) {
		for (size_t i = 0; i < sizeof(caps_mb) / sizeof(*caps_mb);
		     i++) {
			check_growth((enum shape)shape, caps_mb[i], false);
			check_growth((enum shape)shape, caps_mb[i], true);
		}
	}
}
