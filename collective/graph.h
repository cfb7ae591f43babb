/*
 * A graph of operations on tensors, as a compiler sees one rank's program:
 * nodes in an order in which they can run, each the result of earlier ones.
 *
 * Collectives come in two halves, a node that starts one and a `wait` that is
 * its only user. What a node does to its operands matters to us for these and
 * for converts only; all else is an `op`.
 *
 * The kinds below the line are what merging buckets produces (merge.h); a
 * graph that has them is a graph like any other. Three of them gather their
 * operands in one flat buffer of `rows` times `row_size` elements: operand i,
 * converted to the dtype of entry i and seen as `rows` equal pieces, is in
 * every row at the entry's offset; the rest is zero. `unpack` is the way back:
 * its one entry's columns of all rows, one behind the other, seen as its own
 * dtype and shape. Offsets and lengths count elements of the buffer's dtype.
 */
#pragma once
#include "proto/tensor.h"
#include <stdbool.h>
#include <stdint.h>

struct error;

#define GRAPH_MAX_NODES  65536 /* of a graph that is read */
#define GRAPH_MAX_INPUTS 1048576
#define GRAPH_MAX_GROUPS 1024
#define GRAPH_MAX_RANKS  1048576
#define GRAPH_MAX_NAME   255 /* bytes, also of groups and calls */
#define GRAPH_NONE       UINT32_MAX

enum graph_kind {
	GRAPH_PLACEHOLDER, /* an input of the graph */
	GRAPH_OP,
	GRAPH_CONVERT, /* to its own dtype */
	GRAPH_ALL_GATHER,
	GRAPH_REDUCE_SCATTER,
	GRAPH_ALL_REDUCE,
	GRAPH_WAIT,
	GRAPH_OUTPUT,
	/* --- */
	GRAPH_ALLOCATE, /* the buffer that an all-gather fills */
	GRAPH_COPY_IN,  /* into this rank's part of it: (buffer, operands) */
	GRAPH_CONCAT,   /* operands, as traced operations */
	GRAPH_PACK,     /* the same as one opaque operation */
	GRAPH_UNPACK,
	GRAPH_REDUCE_SCATTER_COALESCED, /* of a list; a wait for each */
	GRAPH_N_KINDS
};

enum graph_reduce {
	GRAPH_NO_REDUCE,
	GRAPH_SUM,
	GRAPH_AVG,
	GRAPH_MIN,
	GRAPH_MAX,
	GRAPH_PRODUCT,
	GRAPH_N_REDUCES
};

/* What the caller says about a collective, which overrides what we see. */
enum graph_tag { GRAPH_UNTAGGED, GRAPH_IS_FSDP, GRAPH_IS_NOT_FSDP };

struct graph_entry {
	uint32_t dtype;
	uint64_t offset, length; /* in a row */
};

struct graph_node {
	char *name;
	enum graph_kind kind;
	uint32_t n_inputs;
	uint32_t *inputs;        /* indices of nodes */
	struct tensor_type type; /* contiguous; dtype 0: its value is not one
				  * tensor, as of outputs and some ops */
	char *call;              /* GRAPH_OP: what it calls */
	uint32_t group;          /* collectives; else GRAPH_NONE */
	enum graph_reduce reduce;
	enum graph_tag tag;
	uint32_t index; /* GRAPH_WAIT: which of a coalesced list */
	uint64_t rows, row_size;
	uint32_t n_entries;
	struct graph_entry *entries;
};

struct graph_group {
	char *name;
	uint32_t size; /* ranks */
};

struct graph {
	uint32_t n_nodes, n_groups;
	struct graph_node *nodes; /* these two and all in them are owned */
	struct graph_group *groups;
	uint32_t n_room;
};

#define GRAPH_NULL ((struct graph){0})

void graph_deinit(struct graph *graph);

/* Append a copy of `node` and all that it points to. */
int graph_add(struct graph *graph, const struct graph_node *node,
	      struct error *err);

/* The group of that name, added if there is none; -EINVAL if it has another
 * size, or if there are too many. */
int graph_add_group(struct graph *graph, const char *name, uint32_t size,
		    uint32_t *ret, struct error *err);

/*
 * Is it one? Every refusal (-EINVAL, -EOVERFLOW) names the node: two of one
 * name, a cycle, a use before the definition, operands that the kind does not
 * take, a collective without or with two users, a wait for what is none, types
 * that do not follow from the operands. Inputs must be indices of nodes.
 */
int graph_check(const struct graph *graph, struct error *err);

/* Put the nodes in an order in which they can run; those that need not move
 * keep theirs. There must be no cycle. */
int graph_sort(struct graph *graph, struct error *err);

/* Nodes by name. Valid until the graph changes. */
struct graph_index {
	const struct graph *graph;
	uint32_t *order; /* owned */
};

#define GRAPH_INDEX_NULL ((struct graph_index){0})

/* -EINVAL if two nodes share a name. */
int graph_index_init(struct graph_index *index, const struct graph *graph,
		     struct error *err);
void graph_index_deinit(struct graph_index *index);
/* GRAPH_NONE: there is no such node. */
uint32_t graph_index_find(const struct graph_index *index, const char *name);

/* The nodes that use each node, in order; one that uses it twice is listed
 * twice. */
struct graph_users {
	uint32_t *first; /* owned; of node i: users[first[i]..first[i + 1]) */
	uint32_t *users; /* owned */
};

#define GRAPH_USERS_NULL ((struct graph_users){0})

int graph_users_init(struct graph_users *users, const struct graph *graph,
		     struct error *err);
void graph_users_deinit(struct graph_users *users);

static inline uint32_t graph_users_count(const struct graph_users *users,
					 uint32_t node)
{
	return users->first[node + 1] - users->first[node];
}

/* Bytes of a checked node's result. */
uint64_t graph_bytes(const struct graph_node *node);

bool graph_is_collective(enum graph_kind kind);

const char *graph_kind_name(enum graph_kind kind);
/* GRAPH_N_KINDS: there is none of that name. */
enum graph_kind graph_kind_by_name(const char *name);
/* "" for GRAPH_NO_REDUCE, which is also what an unknown name gives. */
const char *graph_reduce_name(enum graph_reduce reduce);
enum graph_reduce graph_reduce_by_name(const char *name);
