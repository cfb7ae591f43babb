/*
 * Graphs that tests build by hand: every collective is of one group, and passes
 * run over them.
 */
#pragma once
#include "collective/bucketing.h"
#include "collective/graph.h"
#include "proto/error.h"
#include "tests/lib/check.h"

#include <stdio.h>
#include <string.h>

struct build {
	struct graph graph;
	uint32_t group;
	uint32_t n_ranks;
};

static inline void build_init(struct build *build, uint32_t n_ranks)
{
	*build = (struct build){.n_ranks = n_ranks};
	cr_assert(zero(int, graph_add_group(&build->graph, "g", n_ranks,
					    &build->group, NULL)));
}

static inline uint32_t add_node(struct build *build, struct graph_node node,
				const char *name)
{
	tensor_type_contiguous(&node.type);
	node.name = (char *)name;
	cr_assert(zero(int, graph_add(&build->graph, &node, NULL)));
	return build->graph.n_nodes - 1;
}

static inline const struct tensor_type *type_of(const struct build *build,
						uint32_t i)
{
	return &build->graph.nodes[i].type;
}

static inline uint32_t add_placeholder(struct build *build, const char *name,
				       uint32_t dtype, int64_t d0, int64_t d1)
{
	struct graph_node node = {.kind = GRAPH_PLACEHOLDER,
				  .group = GRAPH_NONE};

	node.type = (struct tensor_type){
		.dtype = dtype, .n_dims = d1 < 0 ? 1 : 2, .shape = {d0, d1}};
	return add_node(build, node, name);
}

static inline uint32_t add_convert(struct build *build, const char *name,
				   uint32_t in, uint32_t dtype)
{
	struct graph_node node = {.kind = GRAPH_CONVERT,
				  .n_inputs = 1,
				  .inputs = &in,
				  .type = *type_of(build, in),
				  .group = GRAPH_NONE};

	node.type.dtype = dtype;
	return add_node(build, node, name);
}

static inline uint32_t add_op(struct build *build, const char *name,
			      uint32_t n_inputs, uint32_t *inputs)
{
	struct graph_node node = {.kind = GRAPH_OP,
				  .call = (char *)"f",
				  .n_inputs = n_inputs,
				  .inputs = inputs,
				  .type = *type_of(build, inputs[0]),
				  .group = GRAPH_NONE};

	return add_node(build, node, name);
}

static inline uint32_t add_output(struct build *build, const char *name,
				  uint32_t n_inputs, uint32_t *inputs)
{
	struct graph_node node = {.kind = GRAPH_OUTPUT,
				  .n_inputs = n_inputs,
				  .inputs = inputs,
				  .group = GRAPH_NONE};

	return add_node(build, node, name);
}

static inline uint32_t add_start(struct build *build, const char *name,
				 enum graph_kind kind, uint32_t in)
{
	struct graph_node node = {.kind = kind,
				  .n_inputs = 1,
				  .inputs = &in,
				  .type = *type_of(build, in),
				  .group = build->group};

	if (kind != GRAPH_ALL_GATHER)
		node.reduce = GRAPH_SUM;
	if (kind == GRAPH_ALL_GATHER)
		node.type.shape[0] *= build->n_ranks;
	if (kind == GRAPH_REDUCE_SCATTER)
		node.type.shape[0] /= build->n_ranks;
	return add_node(build, node, name);
}

static inline uint32_t add_wait(struct build *build, const char *name,
				uint32_t start)
{
	struct graph_node node = {.kind = GRAPH_WAIT,
				  .n_inputs = 1,
				  .inputs = &start,
				  .type = *type_of(build, start),
				  .group = GRAPH_NONE};

	return add_node(build, node, name);
}

/* Add a collective called `name`, and its wait with "w" in front of the
 * name. */
static inline uint32_t add_both(struct build *build, const char *name,
				enum graph_kind kind, uint32_t in)
{
	char wait[32];
	uint32_t start = add_start(build, name, kind, in);

	snprintf(wait, sizeof(wait), "w%s", name);
	return add_wait(build, wait, start);
}

/* Apply the same rule to all-gathers and to reductions. */
static inline struct bucketing_options options_of(struct bucketing_rule rule,
						  bool is_faithful)
{
	return (struct bucketing_options){rule, rule, is_faithful};
}

static inline struct bucketing
bucket(const struct build *build, enum bucketing_mode mode, bool is_faithful)
{
	struct bucketing_options options =
		options_of((struct bucketing_rule){.mode = mode}, is_faithful);
	struct error err = ERROR_NULL;
	struct bucketing result;

	cr_assert(zero(int,
		       bucketing_run(&build->graph, &options, &result, &err)),
		  "%s", err.msg);
	return result;
}

static inline uint32_t find(const struct graph *graph, const char *name)
{
	for (uint32_t i = 0; i < graph->n_nodes; i++) {
		if (strcmp(graph->nodes[i].name, name) == 0)
			return i;
	}
	return GRAPH_NONE;
}
