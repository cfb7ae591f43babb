/*
 * A small evaluator for tests, which computes a graph on all ranks at once.
 *
 * Every dtype is treated as an integer of its width that wraps around, so that
 * results are exact in any order. A convert between two dtypes changes the
 * value, so that a missing convert is noticed. All groups have the same ranks.
 * What an operation computes does not matter, as long as it depends on all of
 * its operands and on the called function.
 */
#pragma once
#include "collective/graph.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct eval {
	const struct graph *graph;
	uint32_t n_ranks;
	uint8_t ***values; /* [node][rank]: bytes, or NULL */
};

static inline int64_t eval_load(const uint8_t *data, uint32_t size, uint64_t i)
{
	uint64_t bits = 0;

	/* Only the first eight bytes of wider elements are used. */
	memcpy(&bits, data + i * size, size < 8 ? size : 8);
	if (size < 8 && bits >> (8 * size - 1))
		bits |= ~UINT64_C(0) << (8 * size);
	return (int64_t)bits;
}

static inline void eval_store(uint8_t *data, uint32_t size, uint64_t i,
			      int64_t value)
{
	memset(data + i * size, 0, size);
	memcpy(data + i * size, &value, size < 8 ? size : 8);
}

static inline int64_t eval_convert(int64_t value, uint32_t from, uint32_t to)
{
	return from == to ? value
			  : (int64_t)((uint64_t)value * 3 + from * 17 + to);
}

static inline uint64_t eval_hash(const char *text)
{
	uint64_t hash = 5381;

	for (; *text; text++)
		hash = hash * 33 + (uint8_t)*text;
	return hash;
}

static inline const struct graph_node *
eval_input(const struct eval *eval, const struct graph_node *node, uint32_t k)
{
	return &eval->graph->nodes[node->inputs[k]];
}

static inline uint8_t *eval_value(const struct eval *eval,
				  const struct graph_node *node, uint32_t k,
				  uint32_t rank)
{
	return eval->values[node->inputs[k]][rank];
}

static inline void eval_op(const struct eval *eval,
			   const struct graph_node *node, uint32_t rank,
			   uint8_t *out)
{
	uint64_t n = tensor_type_numel(&node->type);
	uint64_t salt =
		eval_hash(node->kind == GRAPH_OP ? node->call : node->name);

	for (uint64_t i = 0; i < n; i++) {
		uint64_t sum = salt * (i + 1);

		if (node->kind == GRAPH_PLACEHOLDER)
			sum = sum * (rank + 3) >> 5;
		for (uint32_t k = 0; k < node->n_inputs; k++) {
			const struct tensor_type *type =
				&eval_input(eval, node, k)->type;
			uint64_t n_in = tensor_type_numel(type);

			if (n_in)
				sum += (k + 1) *
				       (uint64_t)eval_load(
					       eval_value(eval, node, k, rank),
					       dtype_size(type->dtype),
					       i % n_in);
		}
		eval_store(out, dtype_size(node->type.dtype), i, (int64_t)sum);
	}
}

/* Convert `from` of one dtype into `to` of another, element by element. */
static inline void eval_cast(const uint8_t *from, uint32_t from_dtype,
			     uint8_t *to, uint32_t to_dtype, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++)
		eval_store(
			to, dtype_size(to_dtype), i,
			eval_convert(eval_load(from, dtype_size(from_dtype), i),
				     from_dtype, to_dtype));
}

static inline void eval_fill(const struct eval *eval,
			     const struct graph_node *node, uint32_t rank,
			     uint8_t *out)
{
	uint64_t unit = dtype_size(node->type.dtype);
	uint32_t n_before = node->n_inputs - node->n_entries;

	for (uint32_t e = 0; e < node->n_entries; e++) {
		const struct graph_entry *entry = &node->entries[e];
		const struct tensor_type *type =
			&eval_input(eval, node, n_before + e)->type;
		uint64_t n = tensor_type_numel(type);
		uint8_t *cast = malloc(n * dtype_size(entry->dtype) + 1);

		eval_cast(eval_value(eval, node, n_before + e, rank),
			  type->dtype, cast, entry->dtype, n);
		for (uint64_t row = 0; row < node->rows; row++)
			memcpy(out + (row * node->row_size + entry->offset) *
					       unit,
			       cast + row * entry->length * unit,
			       entry->length * unit);
		free(cast);
	}
}

static inline void eval_unpack(const struct eval *eval,
			       const struct graph_node *node, uint32_t rank,
			       uint8_t *out)
{
	uint64_t unit = dtype_size(eval_input(eval, node, 0)->type.dtype);
	const struct graph_entry *entry = node->entries;

	for (uint64_t row = 0; row < node->rows; row++)
		memcpy(out + row * entry->length * unit,
		       eval_value(eval, node, 0, rank) +
			       (row * node->row_size + entry->offset) * unit,
		       entry->length * unit);
}

/* Reduce element i of operand k over the ranks. */
static inline int64_t eval_reduce(const struct eval *eval,
				  const struct graph_node *node, uint32_t k,
				  uint64_t i)
{
	uint32_t dtype = eval_input(eval, node, k)->type.dtype;
	int64_t result = 0;

	for (uint32_t rank = 0; rank < eval->n_ranks; rank++) {
		int64_t x = eval_load(eval_value(eval, node, k, rank),
				      dtype_size(dtype), i);

		if (rank == 0)
			result = x;
		else if (node->reduce == GRAPH_MIN)
			result = x < result ? x : result;
		else if (node->reduce == GRAPH_MAX)
			result = x > result ? x : result;
		else if (node->reduce == GRAPH_PRODUCT)
			result = (int64_t)((uint64_t)result * (uint64_t)x);
		else
			result = (int64_t)((uint64_t)result + (uint64_t)x);
	}
	return node->reduce == GRAPH_AVG ? result / eval->n_ranks : result;
}

/* Returns the part of operand k that `rank` gets, from element `begin` on. */
static inline void eval_scatter(const struct eval *eval,
				const struct graph_node *node, uint32_t k,
				uint64_t begin, uint64_t n, uint8_t *out)
{
	uint32_t dtype = eval_input(eval, node, k)->type.dtype;

	for (uint64_t i = 0; i < n; i++)
		eval_store(out, dtype_size(dtype), i,
			   eval_reduce(eval, node, k, begin + i));
}

static inline void eval_gather(const struct eval *eval,
			       const struct graph_node *node, uint8_t *out)
{
	uint64_t size = graph_bytes(eval_input(eval, node, 0));

	for (uint32_t rank = 0; rank < eval->n_ranks; rank++)
		memcpy(out + rank * size, eval_value(eval, node, 0, rank),
		       size);
}

static inline void eval_wait(const struct eval *eval,
			     const struct graph_node *node, uint32_t rank,
			     uint8_t *out)
{
	const struct graph_node *start = eval_input(eval, node, 0);
	uint64_t n = tensor_type_numel(&node->type);

	if (start->kind == GRAPH_REDUCE_SCATTER_COALESCED)
		eval_scatter(eval, start, node->index, rank * n, n, out);
	else
		memcpy(out, eval_value(eval, node, 0, rank), graph_bytes(node));
}

static inline void eval_node(const struct eval *eval,
			     const struct graph_node *node, uint32_t rank,
			     uint8_t *out)
{
	uint64_t n = tensor_type_numel(&node->type);
	const struct graph_node *in =
		node->n_inputs ? eval_input(eval, node, 0) : NULL;

	switch (node->kind) {
	case GRAPH_PLACEHOLDER:
	case GRAPH_OP:
		eval_op(eval, node, rank, out);
		break;
	case GRAPH_CONVERT:
		eval_cast(eval_value(eval, node, 0, rank), in->type.dtype, out,
			  node->type.dtype, n);
		break;
	case GRAPH_ALL_GATHER:
		eval_gather(eval, node, out);
		break;
	case GRAPH_REDUCE_SCATTER:
		eval_scatter(eval, node, 0, rank * n, n, out);
		break;
	case GRAPH_ALL_REDUCE:
		eval_scatter(eval, node, 0, 0, n, out);
		break;
	case GRAPH_WAIT:
		eval_wait(eval, node, rank, out);
		break;
	case GRAPH_ALLOCATE: /* overwrites older values */
		memset(out, 0xa5, graph_bytes(node));
		break;
	case GRAPH_COPY_IN:
	case GRAPH_CONCAT:
	case GRAPH_PACK:
		eval_fill(eval, node, rank, out);
		break;
	case GRAPH_UNPACK:
		eval_unpack(eval, node, rank, out);
		break;
	default:
		break;
	}
}

/* Run a checked graph whose groups all have `n_ranks` ranks. */
static inline struct eval eval_run(const struct graph *graph, uint32_t n_ranks)
{
	struct eval eval = {graph, n_ranks, NULL};

	eval.values = calloc(graph->n_nodes + 1, sizeof(*eval.values));
	for (uint32_t i = 0; i < graph->n_nodes; i++) {
		const struct graph_node *node = &graph->nodes[i];

		eval.values[i] = calloc(n_ranks, sizeof(**eval.values));
		for (uint32_t rank = 0; rank < n_ranks; rank++) {
			eval.values[i][rank] = calloc(graph_bytes(node) + 1, 1);
			eval_node(&eval, node, rank, eval.values[i][rank]);
		}
	}
	return eval;
}

static inline void eval_deinit(struct eval *eval)
{
	for (uint32_t i = 0; i < eval->graph->n_nodes; i++) {
		for (uint32_t rank = 0; rank < eval->n_ranks; rank++)
			free(eval->values[i][rank]);
		free(eval->values[i]);
	}
	free(eval->values);
}
