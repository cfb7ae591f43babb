/*
 * A pass finds the candidates, plans the buckets, lays them out and merges
 * them. Every step walks over the nodes and their inputs, or sorts them.
 */
#include "collective/bucketing.h"

#include "collective/bucket.h"
#include "collective/fsdp_filter.h"
#include "proto/error.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const mode_names[BUCKETING_N_MODES] = {
	[BUCKETING_DEFAULT] = "default",
	[BUCKETING_CUSTOM_OPS] = "custom_ops",
	[BUCKETING_MULTIDTYPE] = "custom_ops_multidtype",
	[BUCKETING_COALESCED] = "coalesced",
};

const char *bucketing_mode_name(enum bucketing_mode mode)
{
	assert(mode < BUCKETING_N_MODES);
	return mode_names[mode];
}

enum bucketing_mode bucketing_mode_by_name(const char *name)
{
	int mode = 0;

	while (mode < BUCKETING_N_MODES && strcmp(mode_names[mode], name) != 0)
		mode++;
	return (enum bucketing_mode)mode;
}

const char *bucketing_fate_name(enum bucketing_fate fate)
{
	static const char *const names[] = {
		[BUCKETING_MERGED] = "merged",
		[BUCKETING_ALONE] = "alone",
		[BUCKETING_FILTERED] = "not fsdp",
		[BUCKETING_LEFT_OVER] = "left over",
	};

	assert((size_t)fate < sizeof(names) / sizeof(*names));
	return names[fate];
}

static int no_memory(struct error *err)
{
	return error_nomem(err, "the buckets");
}

/* --- what is FSDP's ------------------------------------------------------ */

static const enum graph_kind kinds[] = {GRAPH_ALL_GATHER, GRAPH_REDUCE_SCATTER,
					GRAPH_ALL_REDUCE};

/* The collectives of FSDP in the graph as it was given. */
struct given {
	struct graph_index index;
	bool *is_fsdp; /* of each node */
};

static void given_deinit(struct given *given)
{
	graph_index_deinit(&given->index);
	free(given->is_fsdp);
}

static int given_init(struct given *given, const struct graph *graph,
		      bool *is_fsdp_group, struct error *err)
{
	size_t n = graph->n_nodes;
	bool *is_fsdp = calloc(n + 1, sizeof(*is_fsdp));
	int r;

	given->is_fsdp = calloc(n + 1, sizeof(*given->is_fsdp));
	r = is_fsdp && given->is_fsdp
		    ? graph_index_init(&given->index, graph, err)
		    : no_memory(err);
	for (size_t k = 0; r == 0 && k < sizeof(kinds) / sizeof(*kinds); k++) {
		r = fsdp_filter(graph, kinds[k], is_fsdp_group, is_fsdp, err);
		for (size_t i = 0; r == 0 && i < n; i++)
			given->is_fsdp[i] |= is_fsdp[i];
	}
	free(is_fsdp);
	return r;
}

/* --- one pass ------------------------------------------------------------ */

struct pass {
	const struct graph *graph;
	const struct given *given; /* if NULL, the current graph is filtered */
	const struct bucketing_rule *rule;
	bool is_faithful;
	enum graph_kind kind;
	struct bucketing *result;
	uint32_t first_bucket; /* index of its first bucket in the result */
	uint32_t n;            /* candidates, in the order of their waits */
	uint32_t *waits;       /* of each candidate */
	struct bucket_item *items;
	uint32_t *buckets; /* of each candidate, counted from 0 in this pass */
	uint32_t n_buckets;
};

static uint32_t start_of(const struct pass *pass, uint32_t candidate)
{
	return pass->graph->nodes[pass->waits[candidate]].inputs[0];
}

static void deinit_pass(struct pass *pass)
{
	free(pass->waits);
	free(pass->items);
	free(pass->buckets);
}

/* Candidates with equal keys may share a bucket. */
static uint64_t key_of(const struct pass *pass, const struct graph_node *start)
{
	bool is_any_dtype = pass->rule->mode == BUCKETING_MULTIDTYPE &&
			    start->kind == GRAPH_ALL_GATHER;
	uint64_t dtype = is_any_dtype ? 0 : start->type.dtype;

	return (uint64_t)start->group << 32 | (uint64_t)start->reduce << 16 |
	       dtype;
}

static void add_candidate(struct pass *pass, uint32_t wait, bool is_fsdp)
{
	const struct graph_node *nodes = pass->graph->nodes;
	const struct graph_node *start = &nodes[nodes[wait].inputs[0]];
	uint64_t in = graph_bytes(&nodes[start->inputs[0]]);
	uint64_t out = graph_bytes(start);

	pass->waits[pass->n] = wait;
	pass->items[pass->n] = (struct bucket_item){.key = key_of(pass, start),
						    .size = in > out ? in : out,
						    .is_rejected = !is_fsdp};
	pass->n++;
}

/* A collective that no pass has merged yet still has its name. */
static int filter(const struct pass *pass, bool *is_fsdp_group, bool *is_fsdp,
		  struct error *err)
{
	const struct graph *graph = pass->graph;
	const struct given *given = pass->given;

	if (!given)
		return fsdp_filter(graph, pass->kind, is_fsdp_group, is_fsdp,
				   err);
	for (uint32_t i = 0; i < graph->n_nodes; i++) {
		const struct graph_node *node = &graph->nodes[i];
		uint32_t at;

		if (node->kind != pass->kind)
			continue;
		at = graph_index_find(&given->index, node->name);
		assert(at != GRAPH_NONE);
		is_fsdp[i] = given->is_fsdp[at];
	}
	return 0;
}

static int find_candidates(struct pass *pass, bool *is_fsdp_group,
			   struct error *err)
{
	const struct graph *graph = pass->graph;
	size_t n = graph->n_nodes;
	bool *is_fsdp = calloc(n + 1, sizeof(*is_fsdp));
	int r;

	pass->waits = calloc(n + 1, sizeof(*pass->waits));
	pass->items = calloc(n + 1, sizeof(*pass->items));
	if (!is_fsdp || !pass->waits || !pass->items) {
		r = no_memory(err);
		goto out;
	}
	r = filter(pass, is_fsdp_group, is_fsdp, err);
	if (r < 0)
		goto out;
	for (uint32_t i = 0; i < n; i++) {
		const struct graph_node *node = &graph->nodes[i];

		if (node->kind == GRAPH_WAIT &&
		    graph->nodes[node->inputs[0]].kind == pass->kind)
			add_candidate(pass, i, is_fsdp[node->inputs[0]]);
	}
out:
	free(is_fsdp);
	return r;
}

/* --- which needs which --------------------------------------------------- */

static uint32_t max_u32(uint32_t a, uint32_t b)
{
	return a > b ? a : b;
}

/* Walks along the graph. Each node passes on the index of the last candidate
 * that it needs. */
static int find_needed(struct pass *pass, struct error *err)
{
	const struct graph *graph = pass->graph;
	uint32_t *n_before = calloc(graph->n_nodes, sizeof(*n_before));
	uint32_t *own = calloc(graph->n_nodes, sizeof(*own));

	if (!n_before || !own) {
		free(n_before);
		free(own);
		return no_memory(err);
	}
	for (uint32_t c = 0; c < pass->n; c++) {
		if (!pass->items[c].is_rejected)
			own[start_of(pass, c)] = c + 1;
	}
	for (uint32_t i = 0; i < graph->n_nodes; i++) {
		const struct graph_node *node = &graph->nodes[i];

		for (uint32_t k = 0; k < node->n_inputs; k++) {
			uint32_t in = node->inputs[k];

			n_before[i] = max_u32(n_before[i],
					      max_u32(n_before[in], own[in]));
		}
	}
	for (uint32_t c = 0; c < pass->n; c++)
		pass->items[c].n_before = n_before[start_of(pass, c)];
	free(n_before);
	free(own);
	return 0;
}

/* --- what became of each ------------------------------------------------- */

static bool is_merged(const struct bucketing_bucket *bucket)
{
	return bucket->n_members > 1;
}

static int fill_member(const struct pass *pass, uint32_t candidate,
		       enum bucketing_fate fate,
		       struct bucketing_member *member, struct error *err)
{
	const char *name = pass->graph->nodes[start_of(pass, candidate)].name;

	*member = (struct bucketing_member){strdup(name),
					    pass->items[candidate].size, fate};
	return member->name ? 0 : no_memory(err);
}

static int add_left(struct pass *pass, uint32_t candidate, struct error *err)
{
	struct bucketing *result = pass->result;
	enum bucketing_fate fate = pass->items[candidate].is_rejected
					   ? BUCKETING_FILTERED
					   : BUCKETING_LEFT_OVER;
	int r = fill_member(pass, candidate, fate,
			    &result->left[result->n_left], err);

	if (r == 0)
		result->n_left++;
	return r;
}

/* Returns the form of buckets of this kind. */
static enum merge_form form_of(const struct pass *pass)
{
	enum bucketing_mode mode = pass->rule->mode;

	if (pass->kind == GRAPH_ALL_REDUCE)
		return MERGE_TRACED;
	if (mode == BUCKETING_COALESCED && pass->kind == GRAPH_REDUCE_SCATTER)
		return MERGE_LISTED;
	if (mode == BUCKETING_CUSTOM_OPS || mode == BUCKETING_MULTIDTYPE)
		return MERGE_OPAQUE;
	return MERGE_TRACED;
}

static int fill_bucket(struct pass *pass, const uint32_t *candidates,
		       uint32_t n, uint32_t *waits, struct error *err)
{
	struct bucketing_bucket *bucket =
		&pass->result->buckets[pass->result->n_buckets++];
	const struct graph_node *start =
		&pass->graph->nodes[start_of(pass, candidates[0])];
	int r = 0;

	bucket->kind = pass->kind;
	bucket->form = form_of(pass);
	bucket->group = start->group;
	bucket->reduce = start->reduce;
	bucket->members = calloc(n, sizeof(*bucket->members));
	if (!bucket->members)
		return no_memory(err);
	for (uint32_t i = 0; r == 0 && i < n; i++) {
		waits[i] = pass->waits[candidates[i]];
		bucket->size += pass->items[candidates[i]].size;
		r = fill_member(pass, candidates[i],
				n > 1 ? BUCKETING_MERGED : BUCKETING_ALONE,
				&bucket->members[i], err);
		bucket->n_members += r == 0;
	}
	if (r < 0)
		return r;
	return merge_layout_init(&bucket->layout, pass->graph, waits, n,
				 !pass->is_faithful, err);
}

/* Sorts the candidates by bucket, and fills the buckets one after another. */
static int fill_buckets(struct pass *pass, uint32_t *waits, struct error *err)
{
	uint32_t *ends = calloc((size_t)pass->n_buckets + 1, sizeof(*ends));
	uint32_t *sorted = calloc((size_t)pass->n + 1, sizeof(*sorted));
	int r = ends && sorted ? 0 : no_memory(err);
	uint32_t begin = 0;

	if (r < 0)
		goto out;
	for (uint32_t i = 0; i < pass->n; i++) {
		if (pass->buckets[i] != BUCKET_NONE)
			ends[pass->buckets[i] + 1]++;
	}
	for (uint32_t b = 0; b < pass->n_buckets; b++)
		ends[b + 1] += ends[b];
	for (uint32_t i = 0; r == 0 && i < pass->n; i++) {
		if (pass->buckets[i] == BUCKET_NONE)
			r = add_left(pass, i, err);
		else
			sorted[ends[pass->buckets[i]]++] = i;
	}
	for (uint32_t b = 0; r == 0 && b < pass->n_buckets; b++) {
		r = fill_bucket(pass, sorted + begin, ends[b] - begin,
				waits + begin, err);
		begin = ends[b];
	}
out:
	free(ends);
	free(sorted);
	return r;
}

/* --- merging ------------------------------------------------------------- */

/*
 * Makes a name like "bucket_ag0", with the next number whose names are all
 * free. Numbers only grow, so the names of all buckets are searched for once.
 */
static void name_bucket(const struct graph_index *index, enum graph_kind kind,
			uint32_t *number, char ret[MERGE_NAME_SIZE])
{
	const char *prefix = kind == GRAPH_ALL_GATHER       ? "ag"
			     : kind == GRAPH_REDUCE_SCATTER ? "rs"
							    : "ar";
	bool is_taken;

	do {
		snprintf(ret, MERGE_NAME_SIZE, "bucket_%s%u", prefix,
			 (*number)++);
		is_taken = graph_index_find(index, ret) != GRAPH_NONE;
		for (int i = 0; i < MERGE_N_SUFFIXES && !is_taken; i++) {
			char name[MERGE_NAME_SIZE + 16];

			snprintf(name, sizeof(name), "%s%s", ret,
				 merge_suffixes[i]);
			is_taken = graph_index_find(index, name) != GRAPH_NONE;
		}
	} while (is_taken);
}

static uint32_t fill_merges(struct pass *pass, const struct graph_index *index,
			    const uint32_t *waits, struct merge_bucket *merges)
{
	uint32_t number = 0, n = 0;

	for (uint32_t b = 0; b < pass->n_buckets; b++) {
		struct bucketing_bucket *bucket =
			&pass->result->buckets[pass->first_bucket + b];
		struct merge_bucket *merge = &merges[n];

		*merge = (struct merge_bucket){waits, bucket->n_members,
					       bucket->form, &bucket->layout,
					       ""};
		waits += bucket->n_members;
		if (!is_merged(bucket))
			continue;
		name_bucket(index, bucket->kind, &number, bucket->name);
		memcpy(merge->name, bucket->name, sizeof(merge->name));
		n++;
	}
	return n;
}

static int merge(struct pass *pass, const uint32_t *waits, struct graph *ret,
		 struct error *err)
{
	struct merge_bucket *merges =
		calloc((size_t)pass->n_buckets + 1, sizeof(*merges));
	struct graph_index index = GRAPH_INDEX_NULL;
	uint32_t n;
	int r;

	if (!merges)
		return no_memory(err);
	r = graph_index_init(&index, pass->graph, err);
	if (r < 0)
		goto out;
	n = fill_merges(pass, &index, waits, merges);
	r = merge_buckets(pass->graph, merges, n, ret, err);
out:
	graph_index_deinit(&index);
	free(merges);
	return r;
}

static int reserve_results(struct pass *pass, struct error *err)
{
	struct bucketing *result = pass->result;
	size_t n_buckets = result->n_buckets + pass->n_buckets;
	size_t n_left = result->n_left + pass->n;
	void *buckets, *left;

	buckets = reallocarray(result->buckets, n_buckets + 1,
			       sizeof(*result->buckets));
	if (!buckets)
		return no_memory(err);
	result->buckets = buckets;
	memset(result->buckets + result->n_buckets, 0,
	       pass->n_buckets * sizeof(*result->buckets));
	left = reallocarray(result->left, n_left + 1, sizeof(*result->left));
	if (!left)
		return no_memory(err);
	result->left = left;
	pass->first_bucket = result->n_buckets;
	return 0;
}

static int plan(struct pass *pass, struct error *err)
{
	struct bucket_options options = {.caps_mb = pass->rule->caps_mb,
					 .n_caps = pass->rule->n_caps,
					 .is_faithful = pass->is_faithful};

	pass->buckets = calloc((size_t)pass->n + 1, sizeof(*pass->buckets));
	if (!pass->buckets)
		return no_memory(err);
	return bucket_plan(pass->items, pass->n, &options, pass->buckets,
			   &pass->n_buckets, err);
}

/* The graph after the pass replaces the graph of the result. */
static int run_pass(struct pass *pass, bool *is_fsdp_group, struct error *err)
{
	struct graph after;
	uint32_t *waits;
	int r = find_candidates(pass, is_fsdp_group, err);

	if (r < 0 || pass->n == 0)
		return r;
	waits = calloc(pass->n, sizeof(*waits));
	if (!waits)
		return no_memory(err);
	r = find_needed(pass, err);
	if (r == 0)
		r = plan(pass, err);
	if (r == 0)
		r = reserve_results(pass, err);
	if (r == 0)
		r = fill_buckets(pass, waits, err);
	if (r == 0)
		r = merge(pass, waits, &after, err);
	if (r == 0) {
		graph_deinit(&pass->result->graph);
		pass->result->graph = after;
	}
	free(waits);
	return r;
}

/* --- all passes ---------------------------------------------------------- */

void bucketing_deinit(struct bucketing *bucketing)
{
	for (uint32_t b = 0; b < bucketing->n_buckets; b++) {
		struct bucketing_bucket *bucket = &bucketing->buckets[b];

		for (uint32_t i = 0; i < bucket->n_members; i++)
			free(bucket->members[i].name);
		free(bucket->members);
		merge_layout_deinit(&bucket->layout);
	}
	for (uint32_t i = 0; i < bucketing->n_left; i++)
		free(bucketing->left[i].name);
	graph_deinit(&bucketing->graph);
	free(bucketing->buckets);
	free(bucketing->left);
	*bucketing = BUCKETING_NULL;
}

static int check_caps(const struct bucketing_rule *rule, struct error *err)
{
	int r = 0;

	for (uint32_t i = 0; r == 0 && i < rule->n_caps; i++)
		r = bucket_check_cap(rule->caps_mb[i], err);
	return r;
}

static int run_passes(const struct graph *graph,
		      const struct bucketing_options *options,
		      struct bucketing *result, struct error *err)
{
	struct given given = {.index = GRAPH_INDEX_NULL};
	bool *is_fsdp_group = calloc((size_t)graph->n_groups + 1, sizeof(bool));
	int r = is_fsdp_group ? 0 : no_memory(err);

	if (r == 0 && !options->is_faithful)
		r = given_init(&given, graph, is_fsdp_group, err);
	for (size_t i = 0; r == 0 && i < sizeof(kinds) / sizeof(*kinds); i++) {
		struct pass pass = {
			.graph = &result->graph,
			.given = options->is_faithful ? NULL : &given,
			.rule = kinds[i] == GRAPH_ALL_GATHER ? &options->gather
							     : &options->reduce,
			.is_faithful = options->is_faithful,
			.kind = kinds[i],
			.result = result};

		r = run_pass(&pass, is_fsdp_group, err);
		deinit_pass(&pass);
	}
	given_deinit(&given);
	free(is_fsdp_group);
	return r;
}

int bucketing_run(const struct graph *graph,
		  const struct bucketing_options *options,
		  struct bucketing *ret, struct error *err)
{
	struct bucketing result = BUCKETING_NULL;
	int r = graph_check(graph, err);

	if (r == 0)
		r = check_caps(&options->gather, err);
	if (r == 0)
		r = check_caps(&options->reduce, err);
	/* A merge without buckets copies the graph. */
	if (r == 0)
		r = merge_buckets(graph, NULL, 0, &result.graph, err);
	if (r == 0)
		r = run_passes(graph, options, &result, err);
	if (r == 0) {
		r = graph_check(&result.graph, err);
		if (r < 0)
			r = error_wrap(err, r, "after bucketing");
	}
	if (r < 0) {
		bucketing_deinit(&result);
		return r;
	}
	*ret = result;
	return 0;
}
