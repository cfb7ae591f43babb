/*
 * Reads graphs as JSON, and runs the bucketing passes over them. A graph that
 * is accepted can be bucketed in every mode, or is refused with a sentence. The
 * result is a graph that is written and read as the same.
 *
 * The last byte chooses mode, quirks and cap, so the unchanged files of
 * docs/graphs/ are seeds.
 */
#include "collective/bucketing.h"
#include "collective/graph.h"
#include "collective/graph_json.h"
#include "proto/error.h"

#include <jansson.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_round_trip(const struct graph *graph)
{
	json_t *document = graph_json_write(graph), *again;
	char *text = document ? json_dumps(document, JSON_COMPACT) : NULL;
	struct graph copy;

	if (!text || graph_json_read(text, strlen(text), &copy, NULL) < 0)
		abort();
	again = graph_json_write(&copy);
	if (!again || !json_equal(document, again))
		abort();
	json_decref(document);
	json_decref(again);
	graph_deinit(&copy);
	free(text);
}

/* Every collective is in one bucket, or is left out with a reason. */
static void check_count(const struct graph *graph,
			const struct bucketing *result)
{
	uint32_t n = result->n_left, n_expected = 0;

	for (uint32_t b = 0; b < result->n_buckets; b++)
		n += result->buckets[b].n_members;
	for (uint32_t i = 0; i < graph->n_nodes; i++) {
		enum graph_kind kind = graph->nodes[i].kind;

		n_expected += graph_is_collective(kind) &&
			      kind != GRAPH_REDUCE_SCATTER_COALESCED;
	}
	if (n != n_expected)
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const double caps[] = {2000, 0, 0.0001, 0.00001};
	struct bucketing_options options = {.gather.n_caps = 1,
					    .reduce.n_caps = 1};
	struct error err = ERROR_NULL;
	struct bucketing result;
	struct graph graph;
	int r;

	if (size < 1)
		return 0;
	size--;
	options.gather.mode =
		(enum bucketing_mode)(data[size] % BUCKETING_N_MODES);
	options.reduce.mode =
		(enum bucketing_mode)((data[size] >> 5) % BUCKETING_N_MODES);
	options.is_faithful = data[size] & 4;
	options.gather.caps_mb = &caps[data[size] >> 3 & 3];
	options.reduce.caps_mb = &caps[data[size] >> 6];
	r = graph_json_read((const char *)data, size, &graph, &err);
	if (r < 0) {
		if (r != err.code || !err.msg[0])
			abort();
		return 0;
	}
	check_round_trip(&graph);
	r = bucketing_run(&graph, &options, &result, &err);
	if (r < 0) {
		if (r != err.code || !err.msg[0])
			abort();
	} else {
		check_count(&graph, &result);
		check_round_trip(&result.graph);
		bucketing_deinit(&result);
	}
	graph_deinit(&graph);
	return 0;
}
