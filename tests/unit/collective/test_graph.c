/* Tests graphs as JSON: which are valid, and which sentence refuses the
 * others. */
#include "collective/graph.h"
#include "collective/graph_json.h"
#include "proto/error.h"
#include "tests/lib/check.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int read_text(const char *text, struct graph *ret, struct error *err)
{
	return graph_json_read(text, strlen(text), ret, err);
}

/* `nodes` is the contents of the array. */
static int read_nodes(const char *nodes, struct graph *ret, struct error *err)
{
	char text[4096];

	cr_assert(lt(int,
		     snprintf(text, sizeof(text), "{\"nodes\":[%s]}", nodes),
		     (int)sizeof(text)));
	return read_text(text, ret, err);
}

#define NODE(name, kind) "{\"name\":\"" name "\",\"kind\":\"" kind "\""
#define IN(inputs)       ",\"inputs\":[" inputs "]"
#define F32(shape)       ",\"dtype\":\"f32\",\"shape\":[" shape "]}"
#define OF(group, size)  ",\"group\":\"" group "\",\"group_size\":" size
#define P                NODE("p", "placeholder") F32("4")
#define AG(name, in, shape)                                                    \
	NODE(name, "all_gather") IN(in) OF("g", "2") F32(shape)
#define WAIT(name, in, shape) NODE(name, "wait") IN(in) F32(shape)
#define OP(name, in)          NODE(name, "op") ",\"call\":\"f\"" IN(in) F32("4")

Test(graph, a_graph_is_written_as_it_was_read)
{
	const char *text = "{\"nodes\":[" P "," AG("g", "\"p\"", "8") "," WAIT(
		"w", "\"g\"", "8") "," NODE("c", "convert")
		IN("\"w\"") ",\"dtype\":\"bf16\","
			    "\"shape\":[8]}"
			    "," NODE("r", "reduce_scatter") IN("\"w\"")
				    OF("g",
				       "2") ",\"reduce\":\"avg\","
					    "\"fsdp\":true" F32("4") "," WAIT(
						    "s", "\"r\"",
						    "4") "," NODE("o", "output")
						    IN("\"c\",\"s\"") "}]}";
	json_t *expected = json_loads(text, 0, NULL), *got;
	struct graph graph;

	cr_assert(ne(ptr, expected, NULL));
	cr_assert(zero(int, read_text(text, &graph, NULL)));
	cr_assert(eq(u32, graph.n_nodes, 7));
	cr_assert(eq(u32, graph.nodes[1].kind, GRAPH_ALL_GATHER));
	cr_assert(eq(u32, graph.nodes[4].inputs[0], 2));
	cr_assert(eq(u32, graph.nodes[4].tag, GRAPH_IS_FSDP));
	cr_assert(eq(u64, graph_bytes(&graph.nodes[3]), 16));
	got = graph_json_write(&graph);
	cr_assert(json_equal(expected, got));
	json_decref(expected);
	json_decref(got);
	graph_deinit(&graph);
}

/* A number sets a shape, and a split returns a tuple. */
Test(graph, a_value_may_be_a_number_or_a_tuple)
{
	const char *text =
		"{\"nodes\":[" NODE("n", "placeholder") "}," NODE("s", "op")
			IN("\"n\"") ",\"call\":\"split\"}," OP(
				"a", "\"s\"") "," NODE("o", "output")
				IN("\"a\",\"n\"") "}]}";
	json_t *expected = json_loads(text, 0, NULL), *got;
	struct graph graph;

	cr_assert(ne(ptr, expected, NULL));
	cr_assert(zero(int, read_text(text, &graph, NULL)));
	cr_assert(zero(u32, graph.nodes[1].type.dtype));
	got = graph_json_write(&graph);
	cr_assert(json_equal(expected, got));
	json_decref(expected);
	json_decref(got);
	graph_deinit(&graph);
}

/* case 18 */
Test(graph, an_empty_graph_is_accepted)
{
	struct graph graph;

	cr_assert(zero(int, read_nodes("", &graph, NULL)));
	cr_assert(eq(u32, graph.n_nodes, 0));
	graph_deinit(&graph);
}

static const struct {
	const char *nodes, *sentence;
} refusals[] = {
	/* names and order */
	{P "," P, "two nodes are named 'p'"},
	{OP("a", "\"b\"") "," OP("b", "\"a\""),
	 "nodes 'a' and 'b' are in a cycle"},
	{OP("a", "\"a\""), "nodes 'a' and 'a' are in a cycle"},
	{OP("a", "\"p\"") "," P, "node 'a' uses 'p' before its definition"},
	{OP("a", "\"x\""), "op 'a': its input 'x' is not a node"},
	/* kinds and keys */
	{NODE("a", "fused_mlp") F32("4"),
	 "node 0: 'a' is of the unknown kind 'fused_mlp'"},
	{"{\"kind\":\"op\"}", "node 0: its name is not a string"},
	{"7", "node 0: it is not an object"},
	{NODE("", "op") "}", "node 0: its name is empty"},
	{NODE("a", "op") IN("") F32("4"), "op 'a': it has no call"},
	{NODE("p", "placeholder") ",\"color\":1" F32("4"),
	 "placeholder 'p': a node of this kind has no key 'color'"},
	{NODE("p", "placeholder") OF("g", "2") F32("4"),
	 "placeholder 'p': a node of this kind has no key 'group'"},
	{NODE("p", "placeholder") IN("") F32("4"),
	 "a node of this kind has no key 'inputs'"},
	{NODE("p", "placeholder") ",\"name\":\"q\"" F32("4"),
	 "duplicate object key"},
	{P "," NODE("a", "op") ",\"call\":\"f\",\"inputs\":\"p\"" F32("4"),
	 "op 'a': its inputs are not an array"},
	/* types */
	{NODE("p", "placeholder") F32("-1"),
	 "its size of a dimension is not a whole number"},
	{NODE("p", "placeholder") F32("1.0"),
	 "its size of a dimension is not a whole number"},
	{NODE("p", "placeholder") F32("4611686018427387904"), "2^62"},
	{NODE("p", "placeholder") F32("4294967296,4294967296,0"), "2^62"},
	{NODE("p", "placeholder") F32("1,1,1,1,1,1,1,1,1"), "9 dimensions"},
	{NODE("p", "placeholder") ",\"dtype\":\"f99\",\"shape\":[]}",
	 "its dtype 'f99' is unknown"},
	{P "," NODE("c", "convert") IN("\"p\"") F32("5"),
	 "convert 'c': the shape of a convert must be"},
	{NODE("p", "placeholder") F32("4") "," NODE("o", "output") IN("\"p\"")
		 F32("4"),
	 "a node of this kind has no key 'dtype'"},
	{P "," NODE("o", "output") IN("\"p\"") "}," OP("a", "\"o\""),
	 "op 'a': it uses 'o', which is an output"},
	/* collectives: case 23 for the users */
	{P "," AG("g", "\"p\"", "8"), "all_gather 'g' has 0 users"},
	{P "," AG("g", "\"p\"", "8") "," WAIT("v", "\"g\"",
					      "8") "," WAIT("w", "\"g\"", "8"),
	 "all_gather 'g' has 2 users: a collective has one, its wait"},
	{P "," AG("g", "\"p\"", "8") "," WAIT("v", "\"g\"",
					      "8") "," OP("a", "\"g\""),
	 "op 'a': it uses collective 'g', which only a wait may"},
	{P "," WAIT("w", "\"p\"", "4"),
	 "wait 'w': it waits for 'p', which is not a collective"},
	{P "," AG("g", "\"p\"", "8") "," WAIT("w", "\"g\"", "4"),
	 "wait 'w': its dtype and shape are not those of the result of 'g'"},
	{P "," AG("g", "\"p\"", "9"),
	 "all_gather 'g': the first dimension is 9 with all 2 ranks"},
	{NODE("p", "placeholder") F32("") "," AG("g", "\"p\"", "2"),
	 "a tensor without dimensions cannot be divided"},
	{NODE("p", "placeholder") ",\"dtype\":\"bf16\",\"shape\":[4]}," AG(
		 "g", "\"p\"", "8"),
	 "all_gather 'g': its input is bf16, but its result is f32"},
	{P "," NODE("r", "reduce_scatter") IN("\"p\"")
		 OF("g", "3") ",\"reduce\":\"sum\"" F32("1"),
	 "reduce_scatter 'r': the first dimension is 4 with all 3 ranks"},
	{P "," NODE("r", "all_reduce") IN("\"p\"")
		 OF("g", "3") ",\"reduce\":\"sum\"" F32("2"),
	 "all_reduce 'r': the dtype and shape of an all-reduce must be"},
	{P "," NODE("r", "all_reduce") IN("\"p\"")
		 OF("g", "3") ",\"reduce\":\"xor\"" F32("4"),
	 "all_reduce 'r': its reduce 'xor' is unknown"},
	{P "," NODE("r", "all_reduce") IN("\"p\"") OF("g", "3") F32("4"),
	 "all_reduce 'r': it has no reduce"},
	{P "," NODE("r", "all_gather") IN("\"p\"") OF("g", "0") F32("4"),
	 "its group has no ranks"},
	{P "," NODE("r", "all_gather") IN("\"p\"") OF("g", "true") F32("4"),
	 "its group_size is not a whole number"},
	{P "," AG("g", "\"p\"", "8") "," NODE("h", "all_gather") IN("\"p\"")
		 OF("g", "4") F32("16"),
	 "all_gather 'h': group 'g' has 4 ranks here and 2 elsewhere"},
	{P "," NODE("h", "all_gather") IN("\"p\"") ",\"fsdp\":1" OF("g", "4")
		 F32("16"),
	 "its fsdp is neither true nor false"},
	{P "," AG("g", "\"p\",\"p\"", "8"),
	 "all_gather 'g': its second operand is not a buffer"},
	/* flat buffers */
	{P "," NODE("k", "pack") IN(
		 "\"p\"") ",\"rows\":1,\"row_size\":4,\"entries\":[]" F32("4"),
	 "pack 'k': it has 0 entries for 1 operands"},
	{P "," NODE("k", "pack") IN("\"p\"") ",\"rows\":0,\"row_size\":4,"
					     "\"entries\":[]" F32("4"),
	 "pack 'k': its buffer does not have 0 rows of 4 elements"},
	{P "," NODE("k", "pack") IN(
		 "\"p\"") ",\"rows\":1,\"row_size\":4,\"entries\":[{\"dtype\":"
			  "\"f32\",\"offset\":1,\"length\":4}]" F32("4"),
	 "pack 'k': entry 0 extends beyond the end of a row"},
	{P "," NODE("k", "pack")
		 IN("\"p\",\"p\"") ",\"rows\":1,\"row_size\":9,\"entries\":[{"
				   "\"dtype\":\"f32\",\"offset\":0,\"length\":"
				   "4},{\"dtype\":\"f32\",\"offset\":3,"
				   "\"length\":4}]" F32("9"),
	 "pack 'k': entry 1 begins inside the one before it"},
	{P "," NODE("u", "unpack")
		 IN("\"p\"") ",\"rows\":2,\"row_size\":2,"
			     "\"offset\":0,\"length\":2" F32("2"),
	 "unpack 'u': entry 0 has a length of 2 in 2 rows"},
	{NODE("b", "placeholder") ",\"dtype\":\"bf16\",\"shape\":[4]}," NODE(
		 "u", "unpack")
		 IN("\"b\"") ",\"rows\":1,\"row_size\":4,"
			     "\"offset\":1,\"length\":2" F32("1"),
	 "unpack 'u': it begins at byte 2 of its buffer, which is not a "
	 "multiple"},
	{NODE("b", "allocate") F32("4") "," OP("a", "\"b\""),
	 "op 'a': it reads buffer 'b', which nothing has filled"},
	/* values that are not one tensor */
	{NODE("n", "placeholder") "}," AG("g", "\"n\"", "8"),
	 "all_gather 'g': it needs a tensor, which 'n' is not"},
	{NODE("n", "placeholder") "}," NODE("c", "convert") IN("\"n\"") F32(""),
	 "convert 'c': it needs a tensor, which 'n' is not"},
	{NODE("n", "placeholder") ",\"dtype\":\"f32\"}",
	 "placeholder 'n': it has no shape"},
	{NODE("n", "placeholder") ",\"shape\":[]}",
	 "placeholder 'n': it has no dtype"},
	{P "," NODE("c", "convert") IN("\"p\"") "}",
	 "convert 'c': it has no dtype"},
};

Test(graph, an_invalid_graph_is_refused_with_the_name_of_the_node)
{
	for (size_t i = 0; i < sizeof(refusals) / sizeof(*refusals); i++) {
		struct error err = ERROR_NULL;
		struct graph graph = {.n_nodes = 7};
		int r = read_nodes(refusals[i].nodes, &graph, &err);

		cr_assert(lt(int, r, 0), "%s", refusals[i].sentence);
		cr_assert(ne(ptr, strstr(err.msg, refusals[i].sentence), NULL),
			  "row %zu: '%s', not '%s'", i, err.msg,
			  refusals[i].sentence);
		cr_assert(eq(u32, graph.n_nodes, 7));
	}
}

Test(graph, an_invalid_document_is_refused)
{
	static const char *const texts[] = {"",
					    "[]",
					    "{}",
					    "{\"nodes\":{}}",
					    "{\"nodes\":1}",
					    "{\"nodes\":[],\"edges\":[]}",
					    "{\"nodes\":[]",
					    "{\"nodes\":[]}x",
					    "{\"nodes\":[],\"nodes\":[]}"};

	for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
		struct error err = ERROR_NULL;
		struct graph graph;

		cr_assert(eq(int, read_text(texts[i], &graph, &err), -EINVAL),
			  "%s", texts[i]);
		cr_assert(ne(chr, err.msg[0], '\0'));
	}
}

Test(graph, more_nodes_than_the_limit_are_refused)
{
	size_t size = (GRAPH_MAX_NODES + 1) * 2 + 32, at;
	char *text = malloc(size);
	struct error err = ERROR_NULL;
	struct graph graph;

	at = (size_t)sprintf(text, "{\"nodes\":[0");
	for (int i = 0; i < GRAPH_MAX_NODES; i++) {
		text[at++] = ',';
		text[at++] = '0';
	}
	strcpy(text + at, "]}");
	cr_assert(eq(int, read_text(text, &graph, &err), -EINVAL));
	cr_assert(
		ne(ptr, strstr(err.msg, "65537 nodes, more than 65536"), NULL));
	free(text);
}

Test(graph, files_are_read_and_the_error_names_an_unreadable_one)
{
	char directory[] = "/tmp/graph-XXXXXX", path[64];
	struct error err = ERROR_NULL;
	struct graph graph;
	FILE *file;

	cr_assert(ne(ptr, mkdtemp(directory), NULL));
	cr_assert(lt(int, graph_json_read_file(directory, &graph, &err), 0));
	cr_assert(ne(ptr, strstr(err.msg, "not a regular file"), NULL));
	snprintf(path, sizeof(path), "%s/graph.json", directory);
	cr_assert(eq(int, graph_json_read_file(path, &graph, &err), -ENOENT));
	cr_assert(ne(ptr, strstr(err.msg, path), NULL));
	file = fopen(path, "w");
	fclose(file);
	cr_assert(zero(int, truncate(path, GRAPH_JSON_MAX_SIZE + 1)));
	cr_assert(eq(int, graph_json_read_file(path, &graph, &err), -EFBIG));
	file = fopen(path, "w");
	fputs("{\"nodes\":[]}", file);
	fclose(file);
	cr_assert(zero(int, graph_json_read_file(path, &graph, &err)));
	graph_deinit(&graph);
	unlink(path);
	rmdir(directory);
}

/* --- order --------------------------------------------------------------- */

static void add(struct graph *graph, const char *name, uint32_t n_inputs,
		uint32_t *inputs)
{
	struct graph_node node = {.name = (char *)name,
				  .kind = GRAPH_OP,
				  .call = (char *)"f",
				  .n_inputs = n_inputs,
				  .inputs = inputs,
				  .group = GRAPH_NONE};

	cr_assert(zero(int, graph_add(graph, &node, NULL)));
}

Test(graph, sorting_moves_only_nodes_that_precede_an_operand)
{
	struct graph graph = GRAPH_NULL;
	uint32_t three = 3, one = 1;
	char order[8] = "";

	add(&graph, "a", 0, NULL);
	add(&graph, "b", 1, &three);
	add(&graph, "c", 1, &one);
	add(&graph, "d", 0, NULL);
	add(&graph, "e", 0, NULL);
	cr_assert(zero(int, graph_sort(&graph, NULL)));
	for (uint32_t i = 0; i < graph.n_nodes; i++)
		strcat(order, graph.nodes[i].name);
	cr_assert(eq(str, order, (char *)"adbce"));
	cr_assert(eq(u32, graph.nodes[2].inputs[0], 1));
	cr_assert(eq(u32, graph.nodes[3].inputs[0], 2));
	graph_deinit(&graph);
}
