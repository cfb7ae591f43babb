/*
 * Measures the planning of the graph of a whole training step, from text to
 * text as `fsdpctl plan --json` does it. The graph has 65,536 nodes, a third of
 * them collectives. The floor is sixteen times the time for 4,096 nodes.
 */
#include "bench.h"
#include "collective/bucketing.h"
#include "collective/graph_json.h"
#include "proto/error.h"
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_SMALL   4096
#define N_LARGE   65536
#define N_PER_ONE 6 /* nodes for each parameter */

/* Write a parameter's shard, its gather, and the reduction of its gradient. */
static void write_parameter(FILE *file, unsigned i)
{
	static const char collective[] =
		"{\"name\": \"%s%u\", \"kind\": \"%s\", \"inputs\": "
		"[\"%s%u\"], %s\"group\": \"fsdp\", \"group_size\": 8, "
		"\"dtype\": \"bf16\", \"shape\": [%u, 64]},\n"
		"{\"name\": \"w%s%u\", \"kind\": \"wait\", \"inputs\": "
		"[\"%s%u\"], \"dtype\": \"bf16\", \"shape\": [%u, 64]},\n";

	fprintf(file,
		"{\"name\": \"p%u\", \"kind\": \"placeholder\", \"dtype\": "
		"\"f32\", \"shape\": [8, 64]},\n"
		"{\"name\": \"c%u\", \"kind\": \"convert\", \"inputs\": "
		"[\"p%u\"], \"dtype\": \"bf16\", \"shape\": [8, 64]},\n",
		i, i, i);
	fprintf(file, collective, "g", i, "all_gather", "c", i, "", 64, "g", i,
		"g", i, 64);
	fprintf(file, collective, "s", i, "reduce_scatter", "wg", i,
		"\"reduce\": \"avg\", ", 8, "s", i, "s", i, 8);
}

static char *make_text(unsigned n_nodes, size_t *ret_size)
{
	char *text;
	FILE *file = open_memstream(&text, ret_size);

	if (!file)
		die("make a graph: %m");
	fputs("{\"nodes\": [\n", file);
	for (unsigned i = 0; i < (n_nodes - 1) / N_PER_ONE; i++)
		write_parameter(file, i);
	fputs("{\"name\": \"out\", \"kind\": \"output\", \"inputs\": "
	      "[\"ws0\"]}]}\n",
	      file);
	if (fclose(file))
		die("make a graph: %m");
	return text;
}

static double plan(const char *text, size_t size)
{
	static const double cap_mb = 1;
	const struct bucketing_rule rule = {.caps_mb = &cap_mb, .n_caps = 1};
	const struct bucketing_options options = {rule, rule, false};
	uint64_t begin = now_ns(), end;
	struct error err = ERROR_NULL;
	struct bucketing result;
	struct graph graph;
	json_t *document;
	char *dump;

	if (graph_json_read(text, size, &graph, &err) < 0 ||
	    bucketing_run(&graph, &options, &result, &err) < 0)
		die("plan: %s", err.msg);
	document = graph_json_write(&result.graph);
	dump = json_dumps(document, JSON_INDENT(2));
	if (!dump)
		die("write the plan");
	end = now_ns();
	free(dump);
	json_decref(document);
	bucketing_deinit(&result);
	graph_deinit(&graph);
	return (double)(end - begin);
}

void plan_65536(const struct bench *bench, struct result *ret)
{
	struct pairs pairs = PAIRS_NULL;
	struct repeats repeats;
	size_t small_size, large_size;
	char *small = make_text(N_SMALL, &small_size);
	char *large = make_text(N_LARGE, &large_size);

	repeats = repeats_begin(bench, bench->n_pairs);
	while (pairs_next(&pairs, &repeats)) {
		double floor = plan(small, small_size);

		samples_add(&pairs.floor, floor * (N_LARGE / N_SMALL));
		samples_add(&pairs.ours, plan(large, large_size));
		pairs_close(&pairs);
	}
	pairs_result(&pairs, 1e6, ret);
	pairs_deinit(&pairs);
	free(small);
	free(large);
}
