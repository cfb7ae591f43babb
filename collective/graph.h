/*
 * A graph of operations on tensors, as a compiler sees the program of one rank.
 * Its nodes are in an order in which they can run. Each node is the result of
 * earlier nodes.
 *
 * A collective consists of two nodes: one that starts it, and a `wait`, which
 * is its only user. Only these nodes and converts are described exactly; every
 * other operation is an `op`.
 *
 * The last kinds of enum graph_kind are those that a merge of buckets adds
 * (merge.h). Graphs with them are read, checked and written as well. `copy_in`,
 * `concat` and `pack` collect their operands in one flat buffer of `rows` times
 * `row_size` elements. Operand i is converted to the dtype of entry i and
 * divided into `rows` equal pieces; each row has one piece, at the entry's
 * offset. The rest of the buffer is zero. `unpack` is the reverse: it takes the
 * columns of its only entry from all rows, one after another, and views them
 * with its own dtype and shape. Offsets and lengths count elements of the
 * buffer's dtype.
 */
#pragma once
#include "proto/tensor.h"
#include <stdbool.h>
#include <stdint.h>

struct error;

#define GRAPH_MAX_NODES  65536 /* limit for a graph that is read */
#define GRAPH_MAX_INPUTS 1048576
#define GRAPH_MAX_GROUPS 1024
#define GRAPH_MAX_RANKS  1048576
#define GRAPH_MAX_NAME   255 /* bytes; also the limit for groups and calls */
#define GRAPH_NONE       UINT32_MAX

enum graph_kind {
	GRAPH_PLACEHOLDER, /* an input of the graph */
	GRAPH_OP,
	GRAPH_CONVERT, /* converts to its own dtype */
	GRAPH_ALL_GATHER,
	GRAPH_REDUCE_SCATTER,
	GRAPH_ALL_REDUCE,
	GRAPH_WAIT,
	GRAPH_OUTPUT,
	/* The kinds below are added by merge_buckets(). */
	GRAPH_ALLOCATE, /* the buffer that an all-gather fills */
	/* fills this rank's part of the buffer; its inputs are the buffer and
	 * the operands */
	GRAPH_COPY_IN,
	GRAPH_CONCAT, /* joins the operands by traced operations */
	GRAPH_PACK,   /* does the same by one opaque operation */
	GRAPH_UNPACK,
	GRAPH_REDUCE_SCATTER_COALESCED, /* of a list; each entry has a wait */
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

/* The caller's statement about a collective, which overrides the filters. */
enum graph_tag { GRAPH_UNTAGGED, GRAPH_IS_FSDP, GRAPH_IS_NOT_FSDP };

struct graph_entry {
	uint32_t dtype;
	uint64_t offset, length; /* columns in each row */
};

struct graph_node {
	char *name;
	enum graph_kind kind;
	uint32_t n_inputs;
	uint32_t *inputs; /* indices of nodes */
	/* contiguous; the dtype is 0 if the value is not a single tensor, as
	 * for outputs and some ops */
	struct tensor_type type;
	char *call;     /* GRAPH_OP: name of the function */
	uint32_t group; /* of a collective; otherwise GRAPH_NONE */
	enum graph_reduce reduce;
	enum graph_tag tag;
	uint32_t index; /* GRAPH_WAIT: entry of a coalesced list */
	uint64_t rows, row_size;
	uint32_t n_entries;
	struct graph_entry *entries;
};

struct graph_group {
	char *name;
	uint32_t size; /* number of ranks */
};

struct graph {
	uint32_t n_nodes, n_groups;
	/* both arrays and what they point to are owned */
	struct graph_node *nodes;
	struct graph_group *groups;
	uint32_t capacity;
};

#define GRAPH_NULL ((struct graph){0})

void graph_deinit(struct graph *graph);

/* Appends a copy of `node` and of everything that it points to. */
int graph_add(struct graph *graph, const struct graph_node *node,
	      struct error *err);

/* Finds the group of that name, or adds it. Returns -EINVAL if the group has
 * another size, or if there are too many groups. */
int graph_add_group(struct graph *graph, const char *name, uint32_t size,
		    uint32_t *ret, struct error *err);

/*
 * Checks that the nodes form a valid graph. Inputs must be indices of nodes.
 * Every error (-EINVAL, -EOVERFLOW) names the node: two nodes have one name;
 * there is a cycle; a node is used before it is defined; a kind does not take
 * these operands; a collective has no user, or two; a wait is not for a
 * collective; a type does not follow from the operands.
 */
int graph_check(const struct graph *graph, struct error *err);

/* Sorts the nodes into an order in which they can run. Nodes that need not move
 * keep their place. There must be no cycle. */
int graph_sort(struct graph *graph, struct error *err);

/* An index of the nodes by name. It is valid until the graph changes. */
struct graph_index {
	const struct graph *graph;
	uint32_t *order; /* owned */
};

#define GRAPH_INDEX_NULL ((struct graph_index){0})

/* Returns -EINVAL if two nodes have the same name. */
int graph_index_init(struct graph_index *index, const struct graph *graph,
		     struct error *err);
void graph_index_deinit(struct graph_index *index);
/* Returns GRAPH_NONE if there is no such node. */
uint32_t graph_index_find(const struct graph_index *index, const char *name);

/* The users of each node, in order. A node that uses another one twice is
 * listed twice. */
struct graph_users {
	uint32_t *first; /* owned; users[first[i]..first[i + 1]) use node i */
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

/* Returns the number of bytes of the result of a checked node. */
uint64_t graph_bytes(const struct graph_node *node);

bool graph_is_collective(enum graph_kind kind);

const char *graph_kind_name(enum graph_kind kind);
/* Returns GRAPH_N_KINDS if no kind has that name. */
enum graph_kind graph_kind_by_name(const char *name);
/* The name of GRAPH_NO_REDUCE is "". graph_reduce_by_name() returns
 * GRAPH_NO_REDUCE for unknown names. */
const char *graph_reduce_name(enum graph_reduce reduce);
enum graph_reduce graph_reduce_by_name(const char *name);
