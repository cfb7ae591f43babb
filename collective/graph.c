/*
 * This file has the graph, whose nodes own what they point to, and its two
 * indexes: by name and by user.
 */
#include "collective/graph.h"

#include "proto/error.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char *const kind_names[GRAPH_N_KINDS] = {
	[GRAPH_PLACEHOLDER] = "placeholder",
	[GRAPH_OP] = "op",
	[GRAPH_CONVERT] = "convert",
	[GRAPH_ALL_GATHER] = "all_gather",
	[GRAPH_REDUCE_SCATTER] = "reduce_scatter",
	[GRAPH_ALL_REDUCE] = "all_reduce",
	[GRAPH_WAIT] = "wait",
	[GRAPH_OUTPUT] = "output",
	[GRAPH_ALLOCATE] = "allocate",
	[GRAPH_COPY_IN] = "copy_in",
	[GRAPH_CONCAT] = "concat",
	[GRAPH_PACK] = "pack",
	[GRAPH_UNPACK] = "unpack",
	[GRAPH_REDUCE_SCATTER_COALESCED] = "reduce_scatter_coalesced",
};

static const char *const reduce_names[GRAPH_N_REDUCES] = {
	[GRAPH_NO_REDUCE] = "", [GRAPH_SUM] = "sum",
	[GRAPH_AVG] = "avg",    [GRAPH_MIN] = "min",
	[GRAPH_MAX] = "max",    [GRAPH_PRODUCT] = "product",
};

const char *graph_kind_name(enum graph_kind kind)
{
	assert(kind < GRAPH_N_KINDS);
	return kind_names[kind];
}

enum graph_kind graph_kind_by_name(const char *name)
{
	int kind = 0;

	while (kind < GRAPH_N_KINDS && strcmp(kind_names[kind], name) != 0)
		kind++;
	return (enum graph_kind)kind;
}

const char *graph_reduce_name(enum graph_reduce reduce)
{
	assert(reduce < GRAPH_N_REDUCES);
	return reduce_names[reduce];
}

enum graph_reduce graph_reduce_by_name(const char *name)
{
	for (int i = 1; i < GRAPH_N_REDUCES; i++) {
		if (strcmp(reduce_names[i], name) == 0)
			return (enum graph_reduce)i;
	}
	return GRAPH_NO_REDUCE;
}

bool graph_is_collective(enum graph_kind kind)
{
	return kind == GRAPH_ALL_GATHER || kind == GRAPH_REDUCE_SCATTER ||
	       kind == GRAPH_ALL_REDUCE ||
	       kind == GRAPH_REDUCE_SCATTER_COALESCED;
}

uint64_t graph_bytes(const struct graph_node *node)
{
	return tensor_type_numel(&node->type) * dtype_size(node->type.dtype);
}

/* --- life ---------------------------------------------------------------- */

static void deinit_node(struct graph_node *node)
{
	free(node->name);
	free(node->inputs);
	free(node->call);
	free(node->entries);
}

void graph_deinit(struct graph *graph)
{
	for (uint32_t i = 0; i < graph->n_nodes; i++)
		deinit_node(&graph->nodes[i]);
	for (uint32_t i = 0; i < graph->n_groups; i++)
		free(graph->groups[i].name);
	free(graph->nodes);
	free(graph->groups);
	*graph = GRAPH_NULL;
}

static int no_memory(struct error *err)
{
	return error_nomem(err, "the graph");
}

static int reserve(struct graph *graph, struct error *err)
{
	uint32_t capacity = graph->capacity ? graph->capacity * 2 : 64;
	struct graph_node *nodes;

	if (graph->n_nodes < graph->capacity)
		return 0;
	nodes = reallocarray(graph->nodes, capacity, sizeof(*nodes));
	if (!nodes)
		return no_memory(err);
	graph->nodes = nodes;
	graph->capacity = capacity;
	return 0;
}

/* Copies `n` items. The copy of 0 items is NULL, which is success. */
static bool duplicate(const void *from, size_t n, size_t size, void *ret)
{
	void *copy = NULL;

	if (n > 0) {
		copy = reallocarray(NULL, n, size);
		if (!copy)
			return false;
		memcpy(copy, from, n * size);
	}
	memcpy(ret, &copy, sizeof(copy));
	return true;
}

int graph_add(struct graph *graph, const struct graph_node *node,
	      struct error *err)
{
	struct graph_node copy = *node;
	int r = reserve(graph, err);

	if (r < 0)
		return r;
	copy.inputs = NULL;
	copy.entries = NULL;
	copy.name = strdup(node->name);
	copy.call = node->call ? strdup(node->call) : NULL;
	if (!copy.name || (node->call && !copy.call) ||
	    !duplicate(node->inputs, node->n_inputs, sizeof(*node->inputs),
		       &copy.inputs) ||
	    !duplicate(node->entries, node->n_entries, sizeof(*node->entries),
		       &copy.entries)) {
		deinit_node(&copy);
		return no_memory(err);
	}
	graph->nodes[graph->n_nodes++] = copy;
	return 0;
}

static int append_group(struct graph *graph, const char *name, uint32_t size,
			uint32_t *ret, struct error *err)
{
	struct graph_group *groups;

	if (graph->n_groups == GRAPH_MAX_GROUPS)
		return error_set(err, -EINVAL,
				 "group '%.64s' is too many: a graph has at "
				 "most %d groups",
				 name, GRAPH_MAX_GROUPS);
	groups = reallocarray(graph->groups, graph->n_groups + 1,
			      sizeof(*groups));
	if (!groups)
		return no_memory(err);
	graph->groups = groups;
	groups[graph->n_groups] = (struct graph_group){strdup(name), size};
	if (!groups[graph->n_groups].name)
		return no_memory(err);
	*ret = graph->n_groups++;
	return 0;
}

int graph_add_group(struct graph *graph, const char *name, uint32_t size,
		    uint32_t *ret, struct error *err)
{
	for (uint32_t i = 0; i < graph->n_groups; i++) {
		const struct graph_group *group = &graph->groups[i];

		if (strcmp(group->name, name) != 0)
			continue;
		if (group->size != size)
			return error_set(err, -EINVAL,
					 "group '%.64s' has %u ranks here and "
					 "%u elsewhere",
					 name, size, group->size);
		*ret = i;
		return 0;
	}
	return append_group(graph, name, size, ret, err);
}

/* --- by name ------------------------------------------------------------- */

static int compare_names(const void *a, const void *b, void *data)
{
	const struct graph *graph = data;

	return strcmp(graph->nodes[*(const uint32_t *)a].name,
		      graph->nodes[*(const uint32_t *)b].name);
}

int graph_index_init(struct graph_index *index, const struct graph *graph,
		     struct error *err)
{
	uint32_t n = graph->n_nodes;
	uint32_t *order = calloc((size_t)n + 1, sizeof(*order));

	if (!order)
		return no_memory(err);
	for (uint32_t i = 0; i < n; i++)
		order[i] = i;
	qsort_r(order, n, sizeof(*order), compare_names, (void *)graph);
	for (uint32_t i = 1; i < n; i++) {
		const char *name = graph->nodes[order[i]].name;

		if (strcmp(graph->nodes[order[i - 1]].name, name) != 0)
			continue;
		error_set(err, -EINVAL, "two nodes are named '%.64s'", name);
		free(order);
		return -EINVAL;
	}
	*index = (struct graph_index){graph, order};
	return 0;
}

void graph_index_deinit(struct graph_index *index)
{
	free(index->order);
	*index = GRAPH_INDEX_NULL;
}

uint32_t graph_index_find(const struct graph_index *index, const char *name)
{
	uint32_t low = 0, high = index->graph->n_nodes;

	while (low < high) {
		uint32_t mid = low + (high - low) / 2;
		uint32_t node = index->order[mid];
		int order = strcmp(name, index->graph->nodes[node].name);

		if (order == 0)
			return node;
		if (order < 0)
			high = mid;
		else
			low = mid + 1;
	}
	return GRAPH_NONE;
}

/* --- by user ------------------------------------------------------------- */

int graph_users_init(struct graph_users *users, const struct graph *graph,
		     struct error *err)
{
	uint32_t n = graph->n_nodes, *first, *list;
	size_t n_edges = 0;

	for (uint32_t i = 0; i < n; i++)
		n_edges += graph->nodes[i].n_inputs;
	/* One more slot comes first, where counts become beginnings. */
	first = calloc((size_t)n + 2, sizeof(*first));
	list = calloc(n_edges + 1, sizeof(*list));
	if (!first || !list) {
		free(first);
		free(list);
		return no_memory(err);
	}
	for (uint32_t i = 0; i < n; i++) {
		for (uint32_t k = 0; k < graph->nodes[i].n_inputs; k++)
			first[graph->nodes[i].inputs[k] + 2]++;
	}
	for (uint32_t i = 2; i < n + 2; i++)
		first[i] += first[i - 1];
	for (uint32_t i = 0; i < n; i++) {
		for (uint32_t k = 0; k < graph->nodes[i].n_inputs; k++)
			list[first[graph->nodes[i].inputs[k] + 1]++] = i;
	}
	*users = (struct graph_users){first, list};
	return 0;
}

void graph_users_deinit(struct graph_users *users)
{
	free(users->first);
	free(users->users);
	*users = GRAPH_USERS_NULL;
}

/* --- order --------------------------------------------------------------- */

/*
 * A node with an operand that is not placed yet waits for that operand, and is
 * examined again directly after it; so a node moves only if it must. `n_ready`
 * counts the operands of a node, from the last one on, that are known to be
 * placed.
 */
struct sorting {
	struct graph_node *nodes;
	uint32_t *places; /* in the new order, or GRAPH_NONE */
	uint32_t *order;  /* nodes in the new order */
	uint32_t n_placed;
	uint32_t *n_ready;
	/* list of the nodes that wait for each node */
	uint32_t *waiting, *next;
	uint32_t *stack, n_stack;
};

static uint32_t find_missing(struct sorting *sorting, uint32_t i)
{
	const struct graph_node *node = &sorting->nodes[i];

	for (; sorting->n_ready[i] < node->n_inputs; sorting->n_ready[i]++) {
		uint32_t input =
			node->inputs[node->n_inputs - 1 - sorting->n_ready[i]];

		if (sorting->places[input] == GRAPH_NONE)
			return input;
	}
	return GRAPH_NONE;
}

static void place(struct sorting *sorting, uint32_t i)
{
	sorting->places[i] = sorting->n_placed;
	sorting->order[sorting->n_placed++] = i;
	/* The newest node comes first in the list, and so on the stack. */
	for (uint32_t w = sorting->waiting[i]; w != GRAPH_NONE;
	     w = sorting->next[w])
		sorting->stack[sorting->n_stack++] = w;
}

static void sort_from(struct sorting *sorting, uint32_t first)
{
	sorting->stack[sorting->n_stack++] = first;
	while (sorting->n_stack) {
		uint32_t i = sorting->stack[--sorting->n_stack];
		uint32_t missing = find_missing(sorting, i);

		if (missing == GRAPH_NONE) {
			place(sorting, i);
			continue;
		}
		sorting->next[i] = sorting->waiting[missing];
		sorting->waiting[missing] = i;
	}
}

static void apply_order(struct graph *graph, struct graph_node *nodes,
			const struct sorting *sorting)
{
	for (uint32_t i = 0; i < graph->n_nodes; i++) {
		nodes[i] = graph->nodes[sorting->order[i]];
		for (uint32_t k = 0; k < nodes[i].n_inputs; k++)
			nodes[i].inputs[k] =
				sorting->places[nodes[i].inputs[k]];
	}
	free(graph->nodes);
	graph->nodes = nodes;
	graph->capacity = graph->n_nodes;
}

int graph_sort(struct graph *graph, struct error *err)
{
	uint32_t n = graph->n_nodes;
	uint32_t *arrays = calloc((size_t)n + 1, 6 * sizeof(*arrays));
	struct graph_node *nodes = calloc((size_t)n + 1, sizeof(*nodes));
	struct sorting sorting = {.nodes = graph->nodes};

	if (!arrays || !nodes) {
		free(arrays);
		free(nodes);
		return no_memory(err);
	}
	sorting.places = arrays;
	sorting.waiting = arrays + n;
	sorting.order = arrays + 2 * (size_t)n;
	sorting.n_ready = arrays + 3 * (size_t)n;
	sorting.next = arrays + 4 * (size_t)n;
	sorting.stack = arrays + 5 * (size_t)n;
	memset(arrays, 0xff, 2 * (size_t)n * sizeof(*arrays));
	for (uint32_t i = 0; i < n; i++)
		sort_from(&sorting, i);
	assert(sorting.n_placed == n);
	apply_order(graph, nodes, &sorting);
	free(arrays);
	return 0;
}
