/*
 * plan: puts the collectives of a graph into buckets, and shows the buckets,
 * their layout on the wire, and the new graph. It needs no broker.
 */
#include "client/ctl/args.h"
#include "client/ctl/document.h"
#include "client/ctl/format.h"
#include "client/ctl/table.h"
#include "client/ctl/verb.h"
#include "collective/bucketing.h"
#include "collective/graph.h"
#include "collective/graph_json.h"
#include "proto/error.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define INPUTS_SIZE 64 /* length of a node's inputs in a table */

/* The members of a list are sent from their own buffers, so they have no
 * offset. */
static bool is_list(const struct bucketing_bucket *bucket)
{
	return bucket->form == MERGE_LISTED && bucket->n_members > 1;
}

/* Returns the bytes of one rank's part of the wire. */
static uint64_t part_size(const struct bucketing_bucket *bucket)
{
	return bucket->layout.row_size * dtype_size(bucket->layout.dtype);
}

/* --- as a document ------------------------------------------------------- */

static json_t *member_document(const struct bucketing_bucket *bucket,
			       uint32_t i)
{
	const struct graph_entry *entry = &bucket->layout.entries[i];
	uint64_t unit = dtype_size(bucket->layout.dtype);

	return json_pack("{s:o, s:o, s:s, s:o, s:o}", "node",
			 document_text(bucket->members[i].name), "bytes",
			 document_number(bucket->members[i].size), "dtype",
			 dtype_name(entry->dtype), "offset",
			 is_list(bucket)
				 ? json_null()
				 : document_number(entry->offset * unit),
			 "length", document_number(entry->length * unit));
}

/* Returns NULL if memory runs out. json_pack(), to which it is passed, then
 * fails as well. */
static json_t *members_document(const struct bucketing_bucket *bucket)
{
	json_t *array = json_array();

	for (uint32_t i = 0; i < bucket->n_members; i++) {
		if (json_array_append_new(array, member_document(bucket, i))) {
			json_decref(array);
			return NULL;
		}
	}
	return array;
}

static json_t *bucket_document(const struct bucketing *result, uint32_t b)
{
	const struct bucketing_bucket *bucket = &result->buckets[b];
	const struct graph_group *group = &result->graph.groups[bucket->group];
	bool has_reduce = bucket->reduce != GRAPH_NO_REDUCE;

	return json_pack(
		"{s:I, s:s, s:o, s:I, s:o, s:s, s:o, s:o, s:I, s:o, s:o}",
		"bucket", (json_int_t)b, "kind", graph_kind_name(bucket->kind),
		"group", document_text(group->name), "ranks",
		(json_int_t)group->size, "reduce",
		has_reduce ? json_string(graph_reduce_name(bucket->reduce))
			   : json_null(),
		"dtype", dtype_name(bucket->layout.dtype), "bytes",
		document_number(bucket->size), "part",
		is_list(bucket) ? json_null()
				: document_number(part_size(bucket)),
		"parts", (json_int_t)bucket->layout.n_ranks, "merged",
		*bucket->name ? json_string(bucket->name) : json_null(),
		"members", members_document(bucket));
}

static json_t *buckets_document(const struct bucketing *result)
{
	json_t *array = json_array();

	for (uint32_t b = 0; b < result->n_buckets; b++) {
		if (json_array_append_new(array, bucket_document(result, b))) {
			json_decref(array);
			return NULL;
		}
	}
	return array;
}

static json_t *left_document(const struct bucketing *result)
{
	json_t *array = json_array();

	for (uint32_t i = 0; i < result->n_left; i++) {
		const struct bucketing_member *left = &result->left[i];
		json_t *item = json_pack("{s:o, s:o, s:s}", "node",
					 document_text(left->name), "bytes",
					 document_number(left->size), "why",
					 bucketing_fate_name(left->fate));

		if (json_array_append_new(array, item)) {
			json_decref(array);
			return NULL;
		}
	}
	return array;
}

static int print_document(const struct bucketing *result,
			  const struct args *args, struct error *err)
{
	return document_print(
		json_pack("{s:s, s:s, s:b, s:o, s:o, s:o}", "gather_mode",
			  bucketing_mode_name(args->gather.mode), "reduce_mode",
			  bucketing_mode_name(args->reduce.mode), "faithful",
			  args_has(args, ARG_FAITHFUL), "buckets",
			  buckets_document(result), "left",
			  left_document(result), "graph",
			  graph_json_write(&result->graph)),
		err);
}

/* --- as tables ----------------------------------------------------------- */

/* Prints `text`, unless it is NULL, and then the table. */
static int finish(struct table *table, const char *text, struct error *err)
{
	int r = table->is_incomplete ? error_nomem(err, "a table") : 0;

	if (r == 0 && text)
		puts(text);
	if (r == 0)
		table_print(table, stdout);
	table_deinit(table);
	return r;
}

static void add_bucket(struct table *table, const struct bucketing *result,
		       uint32_t b)
{
	const struct bucketing_bucket *bucket = &result->buckets[b];
	const struct graph_group *group = &result->graph.groups[bucket->group];
	char size[FORMAT_SIZE];

	table_add(table, "%u", b);
	table_add(table, "%s", graph_kind_name(bucket->kind));
	table_add(table, "%s", group->name);
	table_add(table, "%u", group->size);
	table_add(table, "%s",
		  bucket->reduce ? graph_reduce_name(bucket->reduce) : "-");
	table_add(table, "%s", dtype_name(bucket->layout.dtype));
	table_add(table, "%u", bucket->n_members);
	table_add(table, "%s", format_size(bucket->size, size));
	table_add(table, "%s", *bucket->name ? bucket->name : "as it was");
}

static int print_buckets(const struct bucketing *result, struct error *err)
{
	static const char *const titles[] = {">BUCKET", "KIND",   "GROUP",
					     ">RANKS",  "REDUCE", "DTYPE",
					     ">NODES",  ">SIZE",  "BECOMES"};
	struct table table;

	table_init(&table, titles, 9);
	for (uint32_t b = 0; b < result->n_buckets; b++)
		add_bucket(&table, result, b);
	return finish(&table, NULL, err);
}

static void add_entry(struct table *table, const struct bucketing *result,
		      uint32_t b, uint32_t i)
{
	const struct bucketing_bucket *bucket = &result->buckets[b];
	const struct graph_entry *entry = &bucket->layout.entries[i];
	uint64_t unit = dtype_size(bucket->layout.dtype);

	table_add(table, "%u", b);
	table_add(table, "%s", bucket->members[i].name);
	table_add(table, "%s", dtype_name(entry->dtype));
	if (is_list(bucket))
		table_add(table, "-");
	else
		table_add(table, "%" PRIu64, entry->offset * unit);
	table_add(table, "%" PRIu64, entry->length * unit);
	if (is_list(bucket))
		table_add(table, "-");
	else
		table_add(table, "%" PRIu64, part_size(bucket));
}

/* Prints the layout of the wire. The part of rank r begins at r times PART. */
static int print_wire(const struct bucketing *result, struct error *err)
{
	static const char *const titles[] = {">BUCKET", "NODE",    "DTYPE",
					     ">OFFSET", ">LENGTH", ">PART"};
	struct table table;

	table_init(&table, titles, 6);
	for (uint32_t b = 0; b < result->n_buckets; b++) {
		for (uint32_t i = 0; i < result->buckets[b].n_members; i++)
			add_entry(&table, result, b, i);
	}
	return finish(&table,
		      "\nIn bytes of one part of the wire; rank r's begins at "
		      "r times PART, and an all-reduce has one:",
		      err);
}

static int print_left(const struct bucketing *result, struct error *err)
{
	static const char *const titles[] = {"LEFT", "WHY"};
	struct table table;

	table_init(&table, titles, 2);
	for (uint32_t i = 0; i < result->n_left; i++) {
		const struct bucketing_member *left = &result->left[i];

		table_add(&table, "%s", left->name);
		table_add(&table, "%s", bucketing_fate_name(left->fate));
	}
	return finish(&table, "", err);
}

/* Formats "a, b, c". If they do not fit, "..." stands for the last ones. */
static void format_inputs(const struct graph *graph,
			  const struct graph_node *node, char ret[INPUTS_SIZE])
{
	size_t at = 0;

	*ret = '\0';
	for (uint32_t k = 0; k < node->n_inputs; k++) {
		const char *name = graph->nodes[node->inputs[k]].name;
		int n = snprintf(ret + at, INPUTS_SIZE - at, "%s%s",
				 k ? ", " : "", name);

		if (n < 0 || (size_t)n >= INPUTS_SIZE - at) {
			/* this name is left out, because a cut could split a
			 * UTF-8 character */
			snprintf(ret + at, INPUTS_SIZE - at, "%.*s",
				 (int)(INPUTS_SIZE - at - 1),
				 k ? ", ..." : "...");
			return;
		}
		at += (size_t)n;
	}
}

static void add_node(struct table *table, const struct graph *graph, uint32_t i)
{
	const struct graph_node *node = &graph->nodes[i];
	const struct tensor_type *type = &node->type;
	char inputs[INPUTS_SIZE], shape[FORMAT_SHAPE];

	table_add(table, "%s", node->name);
	format_inputs(graph, node, inputs);
	table_add(table, "%s",
		  node->call ? node->call : graph_kind_name(node->kind));
	table_add(table, "%s", type->dtype ? dtype_name(type->dtype) : "-");
	table_add(table, "%s",
		  type->dtype ? format_shape(type->shape, type->n_dims, shape)
			      : "-");
	table_add(table, "%s", inputs);
}

static int print_graph(const struct graph *graph, struct error *err)
{
	static const char *const titles[] = {"NODE", "KIND", "DTYPE", "SHAPE",
					     "INPUTS"};
	struct table table;

	table_init(&table, titles, 5);
	for (uint32_t i = 0; i < graph->n_nodes; i++)
		add_node(&table, graph, i);
	return finish(&table, "", err);
}

static int print_tables(const struct bucketing *result, struct error *err)
{
	int r = print_buckets(result, err);

	if (r == 0 && result->n_buckets)
		r = print_wire(result, err);
	if (r == 0 && result->n_left)
		r = print_left(result, err);
	if (r == 0)
		r = print_graph(&result->graph, err);
	return r;
}

static struct bucketing_rule rule_of(const struct args_rule *rule)
{
	return (struct bucketing_rule){rule->mode, rule->caps_mb, rule->n_caps};
}

static int run_plan(struct fsdp_client *client, const struct args *args,
		    struct error *err)
{
	struct bucketing_options options = {
		.gather = rule_of(&args->gather),
		.reduce = rule_of(&args->reduce),
		.is_faithful = args_has(args, ARG_FAITHFUL)};
	struct bucketing result;
	struct graph graph;
	int r = graph_json_read_file(args->operands[0], &graph, err);

	(void)client;
	if (r < 0)
		return r;
	r = bucketing_run(&graph, &options, &result, err);
	graph_deinit(&graph);
	if (r < 0)
		return error_wrap(err, r, "%s", args->operands[0]);
	if (args_has(args, ARG_JSON))
		r = print_document(&result, args, err);
	else
		r = print_tables(&result, err);
	bucketing_deinit(&result);
	return r;
}

const struct verb verbs_plan[] = {
	{.name = "plan",
	 .operands = "GRAPH.json",
	 .summary = "show how the collectives of a graph are put in buckets",
	 .accepts = ARG_BIT(ARG_JSON) | ARG_BIT(ARG_FAITHFUL) |
		    ARG_BIT(ARG_BUCKET_MODE) | ARG_BIT(ARG_GATHER_MODE) |
		    ARG_BIT(ARG_REDUCE_MODE) | ARG_BIT(ARG_CAPS) |
		    ARG_BIT(ARG_GATHER_CAPS) | ARG_BIT(ARG_REDUCE_CAPS),
	 .n_min = 1,
	 .n_max = 1,
	 .is_local = true,
	 .run = run_plan},
	{0}};
