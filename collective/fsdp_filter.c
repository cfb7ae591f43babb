/*
 * Each rule is one walk over the nodes, so that no graph makes it slow: the
 * value of a node follows from its operands (forwards) or users (backwards).
 */
#include "collective/fsdp_filter.h"

#include "proto/error.h"

#include <stdlib.h>

/* The root of a node is the only placeholder among its ancestors. It is
 * GRAPH_NONE if there is no placeholder, and MORE if there are several. */
#define MORE (GRAPH_NONE - 1)

static uint32_t join(uint32_t a, uint32_t b)
{
	if (a == GRAPH_NONE || a == b)
		return b;
	return b == GRAPH_NONE ? a : MORE;
}

static int find_rooted(const struct graph *graph, bool *is_rooted,
		       struct error *err)
{
	uint32_t *roots = calloc((size_t)graph->n_nodes + 1, sizeof(*roots));

	if (!roots)
		return error_nomem(err, "the filter");
	for (uint32_t i = 0; i < graph->n_nodes; i++) {
		const struct graph_node *node = &graph->nodes[i];
		uint32_t root = GRAPH_NONE;

		for (uint32_t k = 0; k < node->n_inputs; k++)
			root = join(root, roots[node->inputs[k]]);
		is_rooted[i] = root != GRAPH_NONE && root != MORE;
		roots[i] = node->kind == GRAPH_PLACEHOLDER ? i : root;
	}
	free(roots);
	return 0;
}

static bool is_unary(const struct graph_node *node)
{
	for (uint32_t k = 1; k < node->n_inputs; k++) {
		if (node->inputs[k] != node->inputs[0])
			return false;
	}
	return true;
}

/* Finds the nodes from which only unary nodes lead, and only to outputs. */
static void find_unary(const struct graph *graph,
		       const struct graph_users *users, bool *is_good)
{
	for (uint32_t i = graph->n_nodes; i-- > 0;) {
		is_good[i] = true;
		for (uint32_t k = users->first[i]; k < users->first[i + 1];
		     k++) {
			uint32_t user = users->users[k];
			const struct graph_node *node = &graph->nodes[user];

			if (node->kind != GRAPH_OUTPUT &&
			    !(is_good[user] && is_unary(node)))
				is_good[i] = false;
		}
	}
}

static int find_scatters(const struct graph *graph, bool *is_fsdp,
			 struct error *err)
{
	struct graph_users users;
	int r = graph_users_init(&users, graph, err);

	if (r < 0)
		return r;
	find_unary(graph, &users, is_fsdp);
	graph_users_deinit(&users);
	return 0;
}

/* Only nodes of that kind count. A tag overrides the rules. */
static void apply_tags(const struct graph *graph, enum graph_kind kind,
		       bool *is_fsdp)
{
	for (uint32_t i = 0; i < graph->n_nodes; i++) {
		const struct graph_node *node = &graph->nodes[i];

		if (node->tag != GRAPH_UNTAGGED)
			is_fsdp[i] = node->tag == GRAPH_IS_FSDP;
		if (node->kind != kind)
			is_fsdp[i] = false;
	}
}

int fsdp_filter(const struct graph *graph, enum graph_kind kind,
		bool *is_fsdp_group, bool *is_fsdp, struct error *err)
{
	int r = 0;

	if (kind == GRAPH_REDUCE_SCATTER)
		r = find_scatters(graph, is_fsdp, err);
	else if (kind == GRAPH_ALL_GATHER)
		r = find_rooted(graph, is_fsdp, err);
	if (r < 0)
		return r;
	for (uint32_t i = 0; kind == GRAPH_ALL_REDUCE && i < graph->n_nodes;
	     i++)
		is_fsdp[i] = graph->nodes[i].kind == kind &&
			     is_fsdp_group[graph->nodes[i].group];
	apply_tags(graph, kind, is_fsdp);
	for (uint32_t i = 0; kind == GRAPH_ALL_GATHER && i < graph->n_nodes;
	     i++) {
		if (is_fsdp[i])
			is_fsdp_group[graph->nodes[i].group] = true;
	}
	return 0;
}
