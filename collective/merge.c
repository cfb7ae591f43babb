/*
 * One walk over the old graph copies the nodes that stay, and appends the new
 * nodes of each bucket after its last collective. Then inputs are translated,
 * and the nodes are sorted.
 *
 * While the new graph is made, inputs are numbers of one space: the old nodes
 * come first, and then MERGE_IDS numbers for each bucket. A view of the merged
 * result gets the number and the name of the wait that it replaces, so users of
 * that wait do not change.
 */
#include "collective/merge.h"

#include "proto/error.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_BYTES (UINT64_C(1) << 62)

const char *const merge_suffixes[MERGE_N_SUFFIXES] = {"_buffer", "_in",
						      "_wait"};

enum new_id { ID_BUFFER, ID_IN, ID_WAIT, ID_COLLECTIVE, MERGE_IDS };

static int no_memory(struct error *err)
{
	return error_nomem(err, "merging buckets");
}

static const struct graph_node *start_of(const struct graph *graph,
					 uint32_t wait)
{
	return &graph->nodes[graph->nodes[wait].inputs[0]];
}

/* --- layout -------------------------------------------------------------- */

void merge_layout_deinit(struct merge_layout *layout)
{
	free(layout->entries);
	*layout = MERGE_LAYOUT_NULL;
}

/* Returns the first of the dtypes with the smallest elements. */
static uint32_t find_dtype(const struct graph *graph, const uint32_t *waits,
			   uint32_t n_waits, bool *ret_is_mixed)
{
	uint32_t dtype = graph->nodes[waits[0]].type.dtype;
	uint32_t first = dtype;

	*ret_is_mixed = false;
	for (uint32_t i = 1; i < n_waits; i++) {
		uint32_t other = graph->nodes[waits[i]].type.dtype;

		*ret_is_mixed |= other != first;
		if (dtype_size(other) < dtype_size(dtype))
			dtype = other;
	}
	return dtype;
}

/*
 * Offsets are counted in bytes first. They cannot overflow: a graph has less
 * than 2^17 nodes, and the sum is checked after every addition of at most 2^62.
 */
static int place_entries(struct merge_layout *layout, const struct graph *graph,
			 const uint32_t *waits, uint64_t align,
			 struct error *err)
{
	uint64_t unit = dtype_size(layout->dtype), end = 0;

	for (uint32_t i = 0; i < layout->n_entries; i++) {
		const struct graph_node *start = start_of(graph, waits[i]);
		uint64_t size = graph_bytes(&graph->nodes[waits[i]]);

		if (start->kind == GRAPH_ALL_GATHER)
			size /= layout->n_ranks;
		layout->entries[i] =
			(struct graph_entry){.dtype = start->type.dtype,
					     .offset = end / unit,
					     .length = size / unit};
		end += (size + align - 1) / align * align;
		if (end > MAX_BYTES / layout->n_ranks)
			return error_set(err, -EOVERFLOW,
					 "the bucket of '%.64s' would exceed "
					 "2^62 bytes with '%.64s'",
					 start_of(graph, waits[0])->name,
					 start->name);
	}
	layout->row_size = end / unit;
	return 0;
}

int merge_layout_init(struct merge_layout *layout, const struct graph *graph,
		      const uint32_t *waits, uint32_t n_waits, bool is_padded,
		      struct error *err)
{
	const struct graph_node *start = start_of(graph, waits[0]);
	bool is_mixed;
	uint64_t align;
	int r;

	*layout = MERGE_LAYOUT_NULL;
	layout->dtype = find_dtype(graph, waits, n_waits, &is_mixed);
	layout->n_ranks = start->kind == GRAPH_ALL_REDUCE
				  ? 1
				  : graph->groups[start->group].size;
	layout->entries = calloc(n_waits, sizeof(*layout->entries));
	if (!layout->entries)
		return no_memory(err);
	layout->n_entries = n_waits;
	align = is_mixed && is_padded ? MERGE_ALIGN : 1;
	r = place_entries(layout, graph, waits, align, err);
	if (r < 0)
		merge_layout_deinit(layout);
	return r;
}

/* --- the new graph ------------------------------------------------------- */

struct merging {
	const struct graph *old;
	const struct merge_bucket *buckets;
	uint32_t n_buckets;
	struct graph_users users; /* users in the old graph */
	struct graph new;
	uint32_t *places; /* index in the new graph, by number */
	/* the bucket whose last collective the old node is, or GRAPH_NONE */
	uint32_t *last_of;
	bool *is_gone;
	uint32_t *inputs; /* inputs of the node that is being made */
};

static uint32_t id_of(const struct merging *merging, uint32_t bucket,
		      enum new_id id)
{
	return merging->old->n_nodes + bucket * MERGE_IDS + (uint32_t)id;
}

static int append(struct merging *merging, uint32_t id,
		  const struct graph_node *node, struct error *err)
{
	merging->places[id] = merging->new.n_nodes;
	return graph_add(&merging->new, node, err);
}

static int append_named(struct merging *merging, uint32_t bucket,
			enum new_id id, struct graph_node *node,
			struct error *err)
{
	char name[MERGE_NAME_SIZE + 16];

	snprintf(name, sizeof(name), "%s%s", merging->buckets[bucket].name,
		 id < ID_COLLECTIVE ? merge_suffixes[id] : "");
	node->name = name;
	return append(merging, id_of(merging, bucket, id), node, err);
}

static void set_flat(struct tensor_type *type, uint32_t dtype, uint64_t numel)
{
	*type = (struct tensor_type){.dtype = dtype, .n_dims = 1};
	type->shape[0] = (int64_t)numel;
	tensor_type_contiguous(type);
}

/* Returns whether the collective is an all-gather whose input is a convert
 * without other users. */
static bool is_absorbed(const struct merging *merging,
			const struct graph_node *start)
{
	uint32_t input = start->inputs[0];

	return start->kind == GRAPH_ALL_GATHER &&
	       merging->old->nodes[input].kind == GRAPH_CONVERT &&
	       graph_users_count(&merging->users, input) == 1;
}

/* Collects the inputs of the members, without the absorbed converts. */
static uint32_t fill_operands(struct merging *merging,
			      const struct merge_bucket *bucket, uint32_t n)
{
	for (uint32_t i = 0; i < bucket->n_waits; i++) {
		const struct graph_node *start =
			start_of(merging->old, bucket->waits[i]);
		uint32_t input = start->inputs[0];

		if (is_absorbed(merging, start))
			input = merging->old->nodes[input].inputs[0];
		merging->inputs[n++] = input;
	}
	return n;
}

/* Appends the buffer, and the node that fills it. */
static int append_in(struct merging *merging, uint32_t b, struct error *err)
{
	const struct merge_bucket *bucket = &merging->buckets[b];
	const struct merge_layout *layout = bucket->layout;
	enum graph_kind kind = start_of(merging->old, bucket->waits[0])->kind;
	struct graph_node buffer = {.kind = GRAPH_ALLOCATE,
				    .group = GRAPH_NONE};
	struct graph_node in = {.kind = GRAPH_CONCAT,
				.inputs = merging->inputs,
				.group = GRAPH_NONE,
				.rows = 1,
				.row_size = layout->row_size,
				.n_entries = layout->n_entries,
				.entries = layout->entries};
	int r;

	if (kind == GRAPH_REDUCE_SCATTER)
		in.rows = layout->n_ranks;
	if (bucket->form == MERGE_OPAQUE && kind != GRAPH_ALL_REDUCE)
		in.kind = GRAPH_PACK;
	if (bucket->form == MERGE_TRACED && kind == GRAPH_ALL_GATHER) {
		in.kind = GRAPH_COPY_IN;
		set_flat(&buffer.type, layout->dtype,
			 layout->row_size * layout->n_ranks);
		r = append_named(merging, b, ID_BUFFER, &buffer, err);
		if (r < 0)
			return r;
		merging->inputs[in.n_inputs++] = id_of(merging, b, ID_BUFFER);
	}
	in.n_inputs = fill_operands(merging, bucket, in.n_inputs);
	set_flat(&in.type, layout->dtype, in.rows * layout->row_size);
	return append_named(merging, b, ID_IN, &in, err);
}

/* Appends the collective on the buffer, and the wait for it. */
static int append_collective(struct merging *merging, uint32_t b,
			     uint64_t *ret_rows, struct error *err)
{
	const struct merge_bucket *bucket = &merging->buckets[b];
	const struct merge_layout *layout = bucket->layout;
	const struct graph_node *model =
		start_of(merging->old, bucket->waits[0]);
	uint32_t inputs[2] = {id_of(merging, b, ID_IN),
			      id_of(merging, b, ID_BUFFER)};
	struct graph_node node = {.kind = model->kind,
				  .n_inputs = 1,
				  .inputs = inputs,
				  .group = model->group,
				  .reduce = model->reduce,
				  .tag = model->tag};
	bool is_gather = model->kind == GRAPH_ALL_GATHER;
	int r;

	if (is_gather && bucket->form == MERGE_TRACED)
		node.n_inputs = 2;
	*ret_rows = is_gather ? layout->n_ranks : 1;
	set_flat(&node.type, layout->dtype, *ret_rows * layout->row_size);
	r = append_named(merging, b, ID_COLLECTIVE, &node, err);
	if (r < 0)
		return r;
	inputs[0] = id_of(merging, b, ID_COLLECTIVE);
	node = (struct graph_node){.kind = GRAPH_WAIT,
				   .n_inputs = 1,
				   .inputs = inputs,
				   .type = node.type,
				   .group = GRAPH_NONE};
	return append_named(merging, b, ID_WAIT, &node, err);
}

/* Appends a view of the result for every old wait. */
static int append_views(struct merging *merging, uint32_t b, uint64_t rows,
			struct error *err)
{
	const struct merge_bucket *bucket = &merging->buckets[b];
	uint32_t input = id_of(merging, b, ID_WAIT);
	int r = 0;

	for (uint32_t i = 0; r == 0 && i < bucket->n_waits; i++) {
		uint32_t id = bucket->waits[i];
		const struct graph_node *wait = &merging->old->nodes[id];
		struct graph_entry entry = bucket->layout->entries[i];
		struct graph_node node = {.name = wait->name,
					  .kind = GRAPH_UNPACK,
					  .n_inputs = 1,
					  .inputs = &input,
					  .type = wait->type,
					  .group = GRAPH_NONE,
					  .rows = rows,
					  .row_size = bucket->layout->row_size,
					  .n_entries = 1,
					  .entries = &entry};

		r = append(merging, id, &node, err);
	}
	return r;
}

/* Appends the reduce-scatters as a list: nothing is copied, and there are no
 * views. */
static int append_list(struct merging *merging, uint32_t b, struct error *err)
{
	const struct merge_bucket *bucket = &merging->buckets[b];
	const struct graph_node *model =
		start_of(merging->old, bucket->waits[0]);
	struct graph_node node = {.kind = GRAPH_REDUCE_SCATTER_COALESCED,
				  .inputs = merging->inputs,
				  .group = model->group,
				  .reduce = model->reduce,
				  .tag = model->tag};
	uint32_t input = id_of(merging, b, ID_COLLECTIVE);
	int r;

	node.n_inputs = fill_operands(merging, bucket, 0);
	r = append_named(merging, b, ID_COLLECTIVE, &node, err);
	for (uint32_t i = 0; r == 0 && i < bucket->n_waits; i++) {
		uint32_t id = bucket->waits[i];
		struct graph_node wait = merging->old->nodes[id];

		wait.inputs = &input;
		wait.index = i;
		r = append(merging, id, &wait, err);
	}
	return r;
}

static int append_bucket(struct merging *merging, uint32_t b, struct error *err)
{
	uint64_t rows;
	int r;

	if (merging->buckets[b].form == MERGE_LISTED)
		return append_list(merging, b, err);
	r = append_in(merging, b, err);
	if (r < 0)
		return r;
	r = append_collective(merging, b, &rows, err);
	if (r < 0)
		return r;
	return append_views(merging, b, rows, err);
}

/* --- all of it ----------------------------------------------------------- */

static void mark_bucket(struct merging *merging, uint32_t b)
{
	const struct merge_bucket *bucket = &merging->buckets[b];
	uint32_t last = 0;

	for (uint32_t i = 0; i < bucket->n_waits; i++) {
		uint32_t wait = bucket->waits[i];
		uint32_t start = merging->old->nodes[wait].inputs[0];

		merging->is_gone[wait] = true;
		merging->is_gone[start] = true;
		if (is_absorbed(merging, &merging->old->nodes[start]))
			merging->is_gone[merging->old->nodes[start].inputs[0]] =
				true;
		if (start > last)
			last = start;
	}
	merging->last_of[last] = b;
}

static int rewrite(struct merging *merging, struct error *err)
{
	const struct graph *old = merging->old;
	int r = 0;

	for (uint32_t b = 0; b < merging->n_buckets; b++)
		mark_bucket(merging, b);
	for (uint32_t i = 0; r == 0 && i < old->n_groups; i++) {
		uint32_t same;

		r = graph_add_group(&merging->new, old->groups[i].name,
				    old->groups[i].size, &same, err);
	}
	for (uint32_t i = 0; r == 0 && i < old->n_nodes; i++) {
		if (!merging->is_gone[i])
			r = append(merging, i, &old->nodes[i], err);
		if (r == 0 && merging->last_of[i] != GRAPH_NONE)
			r = append_bucket(merging, merging->last_of[i], err);
	}
	if (r < 0)
		return r;
	for (uint32_t i = 0; i < merging->new.n_nodes; i++) {
		struct graph_node *node = &merging->new.nodes[i];

		for (uint32_t k = 0; k < node->n_inputs; k++)
			node->inputs[k] = merging->places[node->inputs[k]];
	}
	return graph_sort(&merging->new, err);
}

static void deinit(struct merging *merging)
{
	graph_users_deinit(&merging->users);
	graph_deinit(&merging->new);
	free(merging->places);
	free(merging->last_of);
	free(merging->is_gone);
	free(merging->inputs);
}

static int init(struct merging *merging, struct error *err)
{
	size_t n = merging->old->n_nodes;
	size_t n_ids = n + (size_t)merging->n_buckets * MERGE_IDS;

	/* Each array has one more item, so that its size is never 0; an operand
	 * list also has the buffer. */
	merging->places = calloc(n_ids + 1, sizeof(*merging->places));
	merging->last_of = calloc(n + 1, sizeof(*merging->last_of));
	merging->is_gone = calloc(n + 1, sizeof(*merging->is_gone));
	merging->inputs = calloc(n + 1, sizeof(*merging->inputs));
	if (!merging->places || !merging->last_of || !merging->is_gone ||
	    !merging->inputs)
		return no_memory(err);
	memset(merging->last_of, 0xff, (n + 1) * sizeof(*merging->last_of));
	return graph_users_init(&merging->users, merging->old, err);
}

int merge_buckets(const struct graph *graph, const struct merge_bucket *buckets,
		  uint32_t n_buckets, struct graph *ret, struct error *err)
{
	struct merging merging = {
		.old = graph, .buckets = buckets, .n_buckets = n_buckets};
	int r = init(&merging, err);

	if (r == 0)
		r = rewrite(&merging, err);
	if (r == 0) {
		*ret = merging.new;
		merging.new = GRAPH_NULL;
	}
	deinit(&merging);
	return r;
}
