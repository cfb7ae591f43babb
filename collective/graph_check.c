/*
 * This file checks that a list of nodes is a graph. The rules of a kind are a
 * row of a table (how many operands, whether it has a type, a group, ...) and a
 * function that derives its type from its operands. Both see nodes whose
 * operands were checked before.
 */
#include "collective/graph.h"

#include "proto/error.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define ANY UINT32_MAX

typedef int check_fn(const struct graph *graph, const struct graph_node *node,
		     struct error *err);

static const struct tensor_type *
operand(const struct graph *graph, const struct graph_node *node, uint32_t i)
{
	return &graph->nodes[node->inputs[i]].type;
}

static bool is_same_shape(const struct tensor_type *a,
			  const struct tensor_type *b)
{
	return a->n_dims == b->n_dims &&
	       memcmp(a->shape, b->shape, a->n_dims * sizeof(*a->shape)) == 0;
}

static bool is_same(const struct tensor_type *a, const struct tensor_type *b)
{
	return a->dtype == b->dtype && is_same_shape(a, b);
}

static bool is_flat(const struct tensor_type *type, uint64_t numel)
{
	return type->n_dims == 1 && (uint64_t)type->shape[0] == numel;
}

/* --- types --------------------------------------------------------------- */

static int check_convert(const struct graph *graph,
			 const struct graph_node *node, struct error *err)
{
	if (is_same_shape(&node->type, operand(graph, node, 0)))
		return 0;
	return error_set(err, -EINVAL,
			 "the shape of a convert must be that of its input");
}

static int check_wait(const struct graph *graph, const struct graph_node *node,
		      struct error *err)
{
	const struct graph_node *start = &graph->nodes[node->inputs[0]];
	struct tensor_type type = start->type;

	if (!graph_is_collective(start->kind))
		return error_set(
			err, -EINVAL,
			"it waits for '%.64s', which is not a collective",
			start->name);
	if (start->kind == GRAPH_REDUCE_SCATTER_COALESCED) {
		if (node->index >= start->n_inputs)
			return error_set(err, -EINVAL,
					 "it waits for entry %u of '%.64s', "
					 "which has %u",
					 node->index, start->name,
					 start->n_inputs);
		type = *operand(graph, start, node->index);
		type.shape[0] /= graph->groups[start->group].size;
	} else if (node->index != 0) {
		return error_set(err, -EINVAL,
				 "an index is for waits for a coalesced "
				 "collective");
	}
	if (is_same(&node->type, &type))
		return 0;
	return error_set(err, -EINVAL,
			 "its dtype and shape are not those of the result of "
			 "'%.64s'",
			 start->name);
}

/* Checks that `large` is `small` times the ranks of the group, along the first
 * dimension. */
static int check_scaled(const struct graph *graph,
			const struct graph_node *node,
			const struct tensor_type *small,
			const struct tensor_type *large, struct error *err)
{
	const struct graph_group *group = &graph->groups[node->group];
	struct tensor_type scaled = *small;

	if (small->dtype != large->dtype)
		return error_set(err, -EINVAL,
				 "its input is %s, but its result is %s: a "
				 "collective cannot convert",
				 dtype_name(operand(graph, node, 0)->dtype),
				 dtype_name(node->type.dtype));
	if (small->n_dims == 0)
		return error_set(err, -EINVAL,
				 "a tensor without dimensions cannot be "
				 "divided among ranks");
	if (!__builtin_mul_overflow(small->shape[0], group->size,
				    &scaled.shape[0]) &&
	    is_same_shape(&scaled, large))
		return 0;
	return error_set(err, -EINVAL,
			 "the first dimension is %" PRId64
			 " with all %u ranks of group '%.64s' and %" PRId64
			 " with one, or others differ",
			 large->n_dims ? large->shape[0] : 0, group->size,
			 group->name, small->shape[0]);
}

static int check_gather(const struct graph *graph,
			const struct graph_node *node, struct error *err)
{
	const struct graph_node *in = &graph->nodes[node->inputs[0]];
	const struct graph_node *buffer;

	if (node->n_inputs == 1)
		return check_scaled(graph, node, &in->type, &node->type, err);
	buffer = &graph->nodes[node->inputs[1]];
	if (buffer->kind != GRAPH_ALLOCATE || in->kind != GRAPH_COPY_IN ||
	    in->inputs[0] != node->inputs[1] ||
	    !is_same(&buffer->type, &node->type))
		return error_set(err, -EINVAL,
				 "its second operand is not a buffer of its "
				 "size into which the first was copied");
	return check_scaled(graph, node, &in->type, &node->type, err);
}

static int check_scatter(const struct graph *graph,
			 const struct graph_node *node, struct error *err)
{
	return check_scaled(graph, node, &node->type, operand(graph, node, 0),
			    err);
}

static int check_reduce(const struct graph *graph,
			const struct graph_node *node, struct error *err)
{
	if (is_same(&node->type, operand(graph, node, 0)))
		return 0;
	return error_set(err, -EINVAL,
			 "the dtype and shape of an all-reduce must be those "
			 "of its input");
}

static int check_coalesced(const struct graph *graph,
			   const struct graph_node *node, struct error *err)
{
	const struct graph_group *group = &graph->groups[node->group];

	for (uint32_t i = 0; i < node->n_inputs; i++) {
		const struct tensor_type *type = operand(graph, node, i);

		if (type->n_dims == 0 || type->shape[0] % group->size != 0)
			return error_set(err, -EINVAL,
					 "the first dimension of operand %u "
					 "does not divide by the %u ranks of "
					 "group '%.64s'",
					 i, group->size, group->name);
	}
	return 0;
}

/* --- flat buffers -------------------------------------------------------- */

/* Checks that the buffer has rows * row_size elements, in one dimension. */
static int check_rows(const struct graph_node *node,
		      const struct tensor_type *buffer, struct error *err)
{
	uint64_t numel;

	if (node->rows == 0 ||
	    __builtin_mul_overflow(node->rows, node->row_size, &numel) ||
	    !is_flat(buffer, numel))
		return error_set(err, -EINVAL,
				 "its buffer does not have %" PRIu64
				 " rows of %" PRIu64 " elements",
				 node->rows, node->row_size);
	return 0;
}

/* Checks that `type`, as `rows` pieces, fills the entry, and that the entry
 * fits in a row. */
static int check_entry(const struct graph_node *node,
		       const struct tensor_type *buffer, uint32_t i,
		       const struct tensor_type *type, struct error *err)
{
	const struct graph_entry *entry = &node->entries[i];
	uint64_t unit = dtype_size(buffer->dtype), bytes, end;
	uint64_t size = dtype_size(entry->dtype);

	if (__builtin_mul_overflow(size, tensor_type_numel(type), &size) ||
	    __builtin_mul_overflow(entry->length, unit, &bytes) ||
	    __builtin_mul_overflow(bytes, node->rows, &bytes) || bytes != size)
		return error_set(err, -EINVAL,
				 "entry %u has a length of %" PRIu64
				 " in %" PRIu64 " rows, which is not the "
				 "%" PRIu64 " bytes of its tensor",
				 i, entry->length, node->rows, size);
	if (__builtin_add_overflow(entry->offset, entry->length, &end) ||
	    end > node->row_size)
		return error_set(
			err, -EINVAL,
			"entry %u extends beyond the end of a row of %" PRIu64
			" elements",
			i, node->row_size);
	return 0;
}

static int check_into(const struct graph *graph, const struct graph_node *node,
		      struct error *err)
{
	uint32_t n_before = node->kind == GRAPH_COPY_IN;
	uint64_t end = 0;
	int r = check_rows(node, &node->type, err);

	if (r < 0)
		return r;
	if (node->n_entries != node->n_inputs - n_before)
		return error_set(err, -EINVAL,
				 "it has %u entries for %u operands",
				 node->n_entries, node->n_inputs - n_before);
	for (uint32_t i = 0; i < node->n_entries; i++) {
		const struct graph_entry *entry = &node->entries[i];

		r = check_entry(node, &node->type, i,
				operand(graph, node, n_before + i), err);
		if (r < 0)
			return r;
		if (entry->offset < end)
			return error_set(err, -EINVAL,
					 "entry %u begins inside the one "
					 "before it",
					 i);
		end = entry->offset + entry->length;
	}
	return 0;
}

static int check_copy_in(const struct graph *graph,
			 const struct graph_node *node, struct error *err)
{
	const struct graph_node *buffer = &graph->nodes[node->inputs[0]];

	if (buffer->kind != GRAPH_ALLOCATE ||
	    buffer->type.dtype != node->type.dtype)
		return error_set(err, -EINVAL,
				 "its first operand is not a buffer of %s",
				 dtype_name(node->type.dtype));
	return check_into(graph, node, err);
}

/*
 * A view of another dtype must begin at a multiple of its size in every row,
 * which a bucket of mixed dtypes without padding can miss.
 */
static int check_unpack(const struct graph *graph,
			const struct graph_node *node, struct error *err)
{
	const struct tensor_type *buffer = operand(graph, node, 0);
	const struct graph_entry *entry = node->entries;
	uint64_t unit = dtype_size(buffer->dtype);
	uint64_t size = dtype_size(node->type.dtype), offset;
	int r = check_rows(node, buffer, err);

	if (r < 0)
		return r;
	if (node->n_entries != 1 || entry->dtype != node->type.dtype)
		return error_set(err, -EINVAL,
				 "it needs one entry of its own dtype");
	r = check_entry(node, buffer, 0, &node->type, err);
	if (r < 0)
		return r;
	offset = entry->offset * unit;
	if (node->rows > 1 && offset % size == 0)
		offset += node->row_size * unit;
	if (offset % size != 0)
		return error_set(err, -EINVAL,
				 "it begins at byte %" PRIu64
				 " of its buffer, which is not a multiple of "
				 "the size of %s",
				 offset, dtype_name(node->type.dtype));
	return 0;
}

/* --- the table ----------------------------------------------------------- */

enum need {
	TYPE = 1,
	GROUP = 2,
	REDUCE = 4,
	CALL = 8,
	ROWS = 16,
	ANY_VALUE = 32
};

/* clang-format off */
static const struct kind_row {
	uint32_t n_min, n_max; /* operands */
	uint32_t needs;
	check_fn *check;       /* of the type; NULL if any type is valid */
} kinds[GRAPH_N_KINDS] = {
	[GRAPH_PLACEHOLDER] = {0, 0, ANY_VALUE, NULL},
	[GRAPH_OP] = {0, ANY, ANY_VALUE | CALL, NULL},
	[GRAPH_CONVERT] = {1, 1, TYPE, check_convert},
	[GRAPH_ALL_GATHER] = {1, 2, TYPE | GROUP, check_gather},
	[GRAPH_REDUCE_SCATTER] = {1, 1, TYPE | GROUP | REDUCE, check_scatter},
	[GRAPH_ALL_REDUCE] = {1, 1, TYPE | GROUP | REDUCE, check_reduce},
	[GRAPH_WAIT] = {1, 1, TYPE, check_wait},
	[GRAPH_OUTPUT] = {0, ANY, 0, NULL},
	[GRAPH_ALLOCATE] = {0, 0, TYPE, NULL},
	[GRAPH_COPY_IN] = {2, ANY, TYPE | ROWS, check_copy_in},
	[GRAPH_CONCAT] = {1, ANY, TYPE | ROWS, check_into},
	[GRAPH_PACK] = {1, ANY, TYPE | ROWS, check_into},
	[GRAPH_UNPACK] = {1, 1, TYPE | ROWS, check_unpack},
	[GRAPH_REDUCE_SCATTER_COALESCED] = {1, ANY, GROUP | REDUCE,
					    check_coalesced},
};
/* clang-format on */

static int check_type(const struct graph_node *node, uint32_t needs,
		      struct error *err)
{
	uint64_t span;

	if ((needs & TYPE) || ((needs & ANY_VALUE) && node->type.dtype))
		return tensor_type_check(&node->type, &span, err);
	if (node->type.dtype)
		return error_set(err, -EINVAL, "it has a dtype, but no tensor");
	return 0;
}

static int check_fields(const struct graph *graph,
			const struct graph_node *node, struct error *err)
{
	const struct kind_row *row = &kinds[node->kind];

	if (node->n_inputs < row->n_min || node->n_inputs > row->n_max)
		return error_set(err, -EINVAL, "it has %u operands",
				 node->n_inputs);
	if ((row->needs & GROUP) && node->group >= graph->n_groups)
		return error_set(err, -EINVAL, "it has no group");
	if ((row->needs & REDUCE) && node->reduce == GRAPH_NO_REDUCE)
		return error_set(err, -EINVAL, "its reduction is missing");
	if ((row->needs & CALL) && !node->call)
		return error_set(err, -EINVAL,
				 "the name of what it calls is missing");
	for (uint32_t i = 0; i < node->n_entries; i++) {
		if (!dtype_size(node->entries[i].dtype))
			return error_set(err, -EINVAL, "entry %u has no dtype",
					 i);
	}
	return check_type(node, row->needs, err);
}

/* Checks that `user` may take the result of `node` as its i-th operand. */
static int check_use(const struct graph_node *node,
		     const struct graph_node *user, uint32_t i,
		     struct error *err)
{
	if (node->kind == GRAPH_OUTPUT)
		return error_set(err, -EINVAL,
				 "it uses '%.64s', which is an output",
				 node->name);
	if (graph_is_collective(node->kind) && user->kind != GRAPH_WAIT)
		return error_set(err, -EINVAL,
				 "it uses collective '%.64s', which only a "
				 "wait may",
				 node->name);
	if (node->kind == GRAPH_ALLOCATE &&
	    !(user->kind == GRAPH_COPY_IN && i == 0) &&
	    !(user->kind == GRAPH_ALL_GATHER && i == 1))
		return error_set(err, -EINVAL,
				 "it reads buffer '%.64s', which nothing has "
				 "filled",
				 node->name);
	if ((kinds[node->kind].needs & ANY_VALUE) && !node->type.dtype &&
	    user->kind != GRAPH_OP && user->kind != GRAPH_OUTPUT)
		return error_set(err, -EINVAL,
				 "it needs a tensor, which '%.64s' is not: "
				 "that node has no dtype",
				 node->name);
	return 0;
}

static int check_node(const struct graph *graph, const struct graph_node *node,
		      struct error *err)
{
	int r = check_fields(graph, node, err);

	for (uint32_t i = 0; r == 0 && i < node->n_inputs; i++)
		r = check_use(&graph->nodes[node->inputs[i]], node, i, err);
	if (r == 0 && kinds[node->kind].check)
		r = kinds[node->kind].check(graph, node, err);
	if (r < 0)
		return error_wrap(err, r, "%s '%.64s'",
				  graph_kind_name(node->kind), node->name);
	return 0;
}

/* --- order --------------------------------------------------------------- */

/* Returns whether `from` needs the result of `to`, directly or through other
 * nodes. Can return -ENOMEM. */
static int needs(const struct graph *graph, uint32_t from, uint32_t to,
		 struct error *err)
{
	size_t n = graph->n_nodes, n_stack = 0;
	uint32_t *stack = calloc(n, sizeof(*stack));
	bool *is_seen = calloc(n, sizeof(*is_seen));
	bool is_found = from == to;

	if (!stack || !is_seen) {
		free(stack);
		free(is_seen);
		return error_nomem(err, "the graph");
	}
	is_seen[from] = true;
	stack[n_stack++] = from;
	while (n_stack && !is_found) {
		const struct graph_node *node = &graph->nodes[stack[--n_stack]];

		for (uint32_t k = 0; k < node->n_inputs; k++) {
			uint32_t input = node->inputs[k];

			if (input == to)
				is_found = true;
			if (is_seen[input])
				continue;
			is_seen[input] = true;
			stack[n_stack++] = input;
		}
	}
	free(stack);
	free(is_seen);
	return is_found;
}

/* Returns the error for node `i`, which uses a node that does not come before
 * it. */
static int refuse_order(const struct graph *graph, uint32_t i, uint32_t input,
			struct error *err)
{
	int r = needs(graph, input, i, err);

	if (r < 0)
		return r;
	if (r > 0)
		return error_set(err, -EINVAL,
				 "nodes '%.64s' and '%.64s' are in a cycle: "
				 "each needs the other's result",
				 graph->nodes[i].name,
				 graph->nodes[input].name);
	return error_set(err, -EINVAL,
			 "node '%.64s' uses '%.64s' before its definition: "
			 "nodes must come in an order in which they can run",
			 graph->nodes[i].name, graph->nodes[input].name);
}

static int check_order(const struct graph *graph, struct error *err)
{
	for (uint32_t i = 0; i < graph->n_nodes; i++) {
		const struct graph_node *node = &graph->nodes[i];

		for (uint32_t k = 0; k < node->n_inputs; k++) {
			assert(node->inputs[k] < graph->n_nodes);
			if (node->inputs[k] >= i)
				return refuse_order(graph, i, node->inputs[k],
						    err);
		}
	}
	return 0;
}

/* --- users of collectives ------------------------------------------------ */

/* Returns whether each entry of the list has exactly one wait. Can return
 * -ENOMEM. */
static int is_waited_for(const struct graph *graph, uint32_t i,
			 const struct graph_users *users, struct error *err)
{
	const uint32_t *list = users->users + users->first[i];
	uint32_t n = graph->nodes[i].n_inputs;
	bool is_good = graph_users_count(users, i) == n;
	bool *is_seen = calloc(n, sizeof(*is_seen));

	if (!is_seen)
		return error_nomem(err, "the graph");
	for (uint32_t k = 0; is_good && k < n; k++) {
		uint32_t index = graph->nodes[list[k]].index;

		is_good = !is_seen[index];
		is_seen[index] = true;
	}
	free(is_seen);
	return is_good;
}

static int check_collective(const struct graph *graph, uint32_t i,
			    const struct graph_users *users, struct error *err)
{
	const struct graph_node *node = &graph->nodes[i];
	const char *kind = graph_kind_name(node->kind);
	uint32_t n = graph_users_count(users, i);
	int r;

	if (node->kind == GRAPH_REDUCE_SCATTER_COALESCED) {
		r = is_waited_for(graph, i, users, err);
		if (r != 0)
			return r < 0 ? r : 0;
		return error_set(err, -EINVAL,
				 "%s '%.64s' has %u entries, but not one wait "
				 "for each",
				 kind, node->name, node->n_inputs);
	}
	if (n == 1)
		return 0;
	return error_set(err, -EINVAL,
			 "%s '%.64s' has %u users: a collective has one, its "
			 "wait",
			 kind, node->name, n);
}

static int check_users(const struct graph *graph, struct error *err)
{
	struct graph_users users;
	int r = graph_users_init(&users, graph, err);

	if (r < 0)
		return r;
	for (uint32_t i = 0; r == 0 && i < graph->n_nodes; i++) {
		if (graph_is_collective(graph->nodes[i].kind))
			r = check_collective(graph, i, &users, err);
	}
	graph_users_deinit(&users);
	return r;
}

int graph_check(const struct graph *graph, struct error *err)
{
	struct graph_index index;
	int r = graph_index_init(&index, graph, err);

	if (r < 0)
		return r;
	graph_index_deinit(&index);
	r = check_order(graph, err);
	for (uint32_t i = 0; r == 0 && i < graph->n_nodes; i++)
		r = check_node(graph, &graph->nodes[i], err);
	if (r == 0)
		r = check_users(graph, err);
	return r;
}
