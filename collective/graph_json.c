/*
 * A table says which kind of node has which keys, and both reading and writing
 * follow it. Nodes are read twice. Names come first, so that operands are found
 * wherever they are, and graph_check() can say what is wrong with the order.
 * For jansson a number with a point or an exponent is not an integer, so no
 * number passes through a double.
 */
#include "collective/graph_json.h"

#include "collective/graph.h"
#include "proto/error.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BIT(kind) (1u << (kind))
#define COLLECTIVES                                                            \
	(BIT(GRAPH_ALL_GATHER) | BIT(GRAPH_REDUCE_SCATTER) |                   \
	 BIT(GRAPH_ALL_REDUCE) | BIT(GRAPH_REDUCE_SCATTER_COALESCED))
#define REDUCTIONS (COLLECTIVES & ~BIT(GRAPH_ALL_GATHER))
#define FILLERS    (BIT(GRAPH_COPY_IN) | BIT(GRAPH_CONCAT) | BIT(GRAPH_PACK))
#define ALL        (BIT(GRAPH_N_KINDS) - 1)
#define TYPED      (ALL & ~(BIT(GRAPH_OUTPUT) | BIT(GRAPH_REDUCE_SCATTER_COALESCED)))
#define SOURCES    (BIT(GRAPH_PLACEHOLDER) | BIT(GRAPH_ALLOCATE))
#define VALUES     (BIT(GRAPH_PLACEHOLDER) | BIT(GRAPH_OP))

enum key {
	KEY_NAME,
	KEY_KIND,
	KEY_INPUTS,
	KEY_CALL,
	KEY_DTYPE,
	KEY_SHAPE,
	KEY_GROUP,
	KEY_GROUP_SIZE,
	KEY_REDUCE,
	KEY_FSDP,
	KEY_INDEX,
	KEY_ROWS,
	KEY_ROW_SIZE,
	KEY_OFFSET,
	KEY_LENGTH,
	KEY_ENTRIES,
	N_KEYS
};

/* clang-format off */
static const struct key_row {
	const char *name;
	uint32_t kinds;    /* kinds that have the key */
	uint32_t optional; /* kinds that may omit the key */
} keys[N_KEYS] = {
	[KEY_NAME] = {"name", ALL, 0},
	[KEY_KIND] = {"kind", ALL, 0},
	[KEY_INPUTS] = {"inputs", ALL & ~SOURCES, 0},
	[KEY_CALL] = {"call", BIT(GRAPH_OP), 0},
	[KEY_DTYPE] = {"dtype", TYPED, VALUES},
	[KEY_SHAPE] = {"shape", TYPED, VALUES},
	[KEY_GROUP] = {"group", COLLECTIVES, 0},
	[KEY_GROUP_SIZE] = {"group_size", COLLECTIVES, 0},
	[KEY_REDUCE] = {"reduce", REDUCTIONS, 0},
	[KEY_FSDP] = {"fsdp", COLLECTIVES, COLLECTIVES},
	[KEY_INDEX] = {"index", BIT(GRAPH_WAIT), BIT(GRAPH_WAIT)},
	[KEY_ROWS] = {"rows", FILLERS | BIT(GRAPH_UNPACK), 0},
	[KEY_ROW_SIZE] = {"row_size", FILLERS | BIT(GRAPH_UNPACK), 0},
	[KEY_OFFSET] = {"offset", BIT(GRAPH_UNPACK), 0},
	[KEY_LENGTH] = {"length", BIT(GRAPH_UNPACK), 0},
	[KEY_ENTRIES] = {"entries", FILLERS, 0},
};
/* clang-format on */

static bool takes(enum graph_kind kind, enum key key)
{
	return keys[key].kinds & BIT(kind);
}

static int no_memory(struct error *err)
{
	return error_nomem(err, "the graph");
}

/* --- reading ------------------------------------------------------------- */

struct reading {
	struct graph graph;
	struct graph names; /* the same nodes, with names and kinds only */
	struct graph_index index; /* of `names` */
	/* values of the keys of the node; borrowed; NULL if the key is
	 * absent */
	json_t *values[N_KEYS];
	uint32_t *inputs; /* of the node; owned until the next node */
	struct graph_entry *entries;
	size_t n_inputs; /* of all nodes */
};

/* Reads the value of `key` as a string of 1 to GRAPH_MAX_NAME bytes. */
static int read_text(const json_t *value, const char *key, const char **ret,
		     struct error *err)
{
	const char *text = json_string_value(value);

	if (!text)
		return error_set(err, -EINVAL, "its %s is not a string", key);
	if (!*text || json_string_length(value) > GRAPH_MAX_NAME)
		return error_set(err, -EINVAL,
				 "its %s is empty or longer than %d bytes", key,
				 GRAPH_MAX_NAME);
	*ret = text;
	return 0;
}

static int read_number(const json_t *value, const char *key, uint64_t max,
		       uint64_t *ret, struct error *err)
{
	json_int_t number = json_integer_value(value);

	if (!json_is_integer(value) || number < 0 || (uint64_t)number > max)
		return error_set(err, -EINVAL,
				 "its %s is not a whole number from 0 to "
				 "%" PRIu64,
				 key, max);
	*ret = (uint64_t)number;
	return 0;
}

static int read_dtype(const json_t *value, uint32_t *ret, struct error *err)
{
	const char *name;
	int r = read_text(value, "dtype", &name, err);

	if (r < 0)
		return r;
	*ret = dtype_by_name(name);
	if (!*ret)
		return error_set(err, -EINVAL,
				 "its dtype '%.32s' is unknown: they are bool, "
				 "u8 to u64, i8 to i64, f16, bf16, f32, f64, "
				 "f8_e4m3, f8_e5m2, c64, c128",
				 name);
	return 0;
}

static int read_shape(const json_t *value, struct tensor_type *type,
		      struct error *err)
{
	size_t n = json_array_size(value);

	if (!json_is_array(value))
		return error_set(err, -EINVAL, "its shape is not an array");
	if (n > TENSOR_MAX_DIMS)
		return error_set(err, -EINVAL,
				 "its shape has %zu dimensions, more than %d",
				 n, TENSOR_MAX_DIMS);
	for (size_t i = 0; i < n; i++) {
		uint64_t size = 0;
		int r = read_number(json_array_get(value, i),
				    "size of a dimension", INT64_MAX, &size,
				    err);

		if (r < 0)
			return r;
		type->shape[i] = (int64_t)size;
	}
	type->n_dims = (uint32_t)n;
	tensor_type_contiguous(type);
	return 0;
}

static int read_type(const struct reading *reading, struct graph_node *node,
		     struct error *err)
{
	const json_t *dtype = reading->values[KEY_DTYPE];
	uint64_t span;
	int r;

	if (!dtype && !reading->values[KEY_SHAPE])
		return 0; /* the value of the node is not one tensor */
	if (!dtype || !reading->values[KEY_SHAPE])
		return error_set(err, -EINVAL, "it has no %s",
				 dtype ? "shape" : "dtype");
	r = read_dtype(dtype, &node->type.dtype, err);
	if (r < 0)
		return r;
	r = read_shape(reading->values[KEY_SHAPE], &node->type, err);
	if (r < 0)
		return r;
	return tensor_type_check(&node->type, &span, err);
}

static int read_group(struct reading *reading, struct graph_node *node,
		      struct error *err)
{
	const char *name;
	uint64_t size = 0;
	int r = read_text(reading->values[KEY_GROUP], "group", &name, err);

	if (r < 0)
		return r;
	r = read_number(reading->values[KEY_GROUP_SIZE], "group_size",
			GRAPH_MAX_RANKS, &size, err);
	if (r < 0)
		return r;
	if (size == 0)
		return error_set(err, -EINVAL, "its group has no ranks");
	return graph_add_group(&reading->graph, name, (uint32_t)size,
			       &node->group, err);
}

static int read_reduce(const json_t *value, enum graph_reduce *ret,
		       struct error *err)
{
	const char *name;
	int r = read_text(value, "reduce", &name, err);

	if (r < 0)
		return r;
	*ret = graph_reduce_by_name(name);
	if (*ret == GRAPH_NO_REDUCE)
		return error_set(err, -EINVAL,
				 "its reduce '%.32s' is unknown: they are sum, "
				 "avg, min, max, product",
				 name);
	return 0;
}

static int read_tag(const json_t *value, enum graph_tag *ret, struct error *err)
{
	if (!value)
		return 0;
	if (!json_is_boolean(value))
		return error_set(err, -EINVAL,
				 "its fsdp is neither true nor false");
	*ret = json_is_true(value) ? GRAPH_IS_FSDP : GRAPH_IS_NOT_FSDP;
	return 0;
}

static int read_index(const json_t *value, uint32_t *ret, struct error *err)
{
	uint64_t index = 0;
	int r;

	if (!value)
		return 0;
	r = read_number(value, "index", UINT32_MAX - 1, &index, err);
	if (r == 0)
		*ret = (uint32_t)index;
	return r;
}

static int read_inputs(struct reading *reading, struct graph_node *node,
		       struct error *err)
{
	const json_t *value = reading->values[KEY_INPUTS];
	size_t n = json_array_size(value);

	if (!json_is_array(value))
		return error_set(err, -EINVAL, "its inputs are not an array");
	reading->n_inputs += n;
	if (reading->n_inputs > GRAPH_MAX_INPUTS)
		return error_set(
			err, -EINVAL,
			"with its inputs all nodes have more than %d inputs",
			GRAPH_MAX_INPUTS);
	reading->inputs = calloc(n + 1, sizeof(*reading->inputs));
	if (!reading->inputs)
		return no_memory(err);
	for (size_t i = 0; i < n; i++) {
		const char *name = json_string_value(json_array_get(value, i));
		uint32_t input;

		if (!name)
			return error_set(err, -EINVAL,
					 "its input %zu is not a string", i);
		input = graph_index_find(&reading->index, name);
		if (input == GRAPH_NONE)
			return error_set(err, -EINVAL,
					 "its input '%.64s' is not a node",
					 name);
		reading->inputs[i] = input;
	}
	node->inputs = reading->inputs;
	node->n_inputs = (uint32_t)n;
	return 0;
}

static int read_entry(const json_t *value, struct graph_entry *ret,
		      struct error *err)
{
	int r;

	if (!json_is_object(value) || json_object_size(value) != 3)
		return error_set(err, -EINVAL,
				 "it is not an object of dtype, offset and "
				 "length");
	r = read_dtype(json_object_get(value, "dtype"), &ret->dtype, err);
	if (r < 0)
		return r;
	r = read_number(json_object_get(value, "offset"), "offset", INT64_MAX,
			&ret->offset, err);
	if (r < 0)
		return r;
	return read_number(json_object_get(value, "length"), "length",
			   INT64_MAX, &ret->length, err);
}

static int read_entries(struct reading *reading, struct graph_node *node,
			struct error *err)
{
	const json_t *value = reading->values[KEY_ENTRIES];
	size_t n = json_array_size(value);

	if (!json_is_array(value))
		return error_set(err, -EINVAL, "its entries are not an array");
	if (n > GRAPH_MAX_INPUTS)
		return error_set(err, -EINVAL, "it has %zu entries", n);
	reading->entries = calloc(n + 1, sizeof(*reading->entries));
	if (!reading->entries)
		return no_memory(err);
	for (size_t i = 0; i < n; i++) {
		int r = read_entry(json_array_get(value, i),
				   &reading->entries[i], err);

		if (r < 0)
			return error_wrap(err, r, "its entry %zu", i);
	}
	node->entries = reading->entries;
	node->n_entries = (uint32_t)n;
	return 0;
}

/* The only entry of an unpack is written in the node itself. */
static int read_view(struct reading *reading, struct graph_node *node,
		     struct error *err)
{
	int r;

	reading->entries = calloc(1, sizeof(*reading->entries));
	if (!reading->entries)
		return no_memory(err);
	reading->entries->dtype = node->type.dtype;
	r = read_number(reading->values[KEY_OFFSET], "offset", INT64_MAX,
			&reading->entries->offset, err);
	if (r < 0)
		return r;
	node->entries = reading->entries;
	node->n_entries = 1;
	return read_number(reading->values[KEY_LENGTH], "length", INT64_MAX,
			   &reading->entries->length, err);
}

static int read_rows(struct reading *reading, struct graph_node *node,
		     struct error *err)
{
	int r = read_number(reading->values[KEY_ROWS], "rows", INT64_MAX,
			    &node->rows, err);

	if (r < 0)
		return r;
	r = read_number(reading->values[KEY_ROW_SIZE], "row_size", INT64_MAX,
			&node->row_size, err);
	if (r < 0)
		return r;
	return node->kind == GRAPH_UNPACK ? read_view(reading, node, err)
					  : read_entries(reading, node, err);
}

static int read_fields(struct reading *reading, struct graph_node *node,
		       struct error *err)
{
	json_t *const *values = reading->values;
	int r = 0;

	if (takes(node->kind, KEY_INPUTS))
		r = read_inputs(reading, node, err);
	if (r == 0 && takes(node->kind, KEY_CALL))
		r = read_text(values[KEY_CALL], "call",
			      (const char **)&node->call, err);
	if (r == 0 && takes(node->kind, KEY_DTYPE))
		r = read_type(reading, node, err);
	if (r == 0 && takes(node->kind, KEY_GROUP))
		r = read_group(reading, node, err);
	if (r == 0 && takes(node->kind, KEY_REDUCE))
		r = read_reduce(values[KEY_REDUCE], &node->reduce, err);
	if (r == 0 && takes(node->kind, KEY_FSDP))
		r = read_tag(values[KEY_FSDP], &node->tag, err);
	if (r == 0 && takes(node->kind, KEY_INDEX))
		r = read_index(values[KEY_INDEX], &node->index, err);
	if (r == 0 && takes(node->kind, KEY_ROWS))
		r = read_rows(reading, node, err);
	return r;
}

/* Takes every key that the kind has, and refuses all others. */
static int sort_keys(struct reading *reading, json_t *object,
		     enum graph_kind kind, struct error *err)
{
	size_t n_known = 0;
	const char *name;
	json_t *value;

	for (int key = 0; key < N_KEYS; key++) {
		reading->values[key] = json_object_get(object, keys[key].name);
		if (!takes(kind, (enum key)key))
			continue;
		n_known += reading->values[key] != NULL;
		if (!reading->values[key] && !(keys[key].optional & BIT(kind)))
			return error_set(err, -EINVAL, "it has no %s",
					 keys[key].name);
	}
	if (n_known == json_object_size(object))
		return 0;
	json_object_foreach(object, name, value)
	{
		int key = 0;

		while (key < N_KEYS && (!takes(kind, (enum key)key) ||
					strcmp(keys[key].name, name) != 0))
			key++;
		if (key == N_KEYS)
			return error_set(
				err, -EINVAL,
				"a node of this kind has no key '%.64s'", name);
	}
	return 0;
}

/* Reads node `i`, whose name and kind are known already. */
static int read_node(struct reading *reading, uint32_t i, json_t *object,
		     struct error *err)
{
	struct graph_node node = reading->names.nodes[i];
	int r;

	r = sort_keys(reading, object, node.kind, err);
	if (r == 0)
		r = read_fields(reading, &node, err);
	if (r == 0)
		r = graph_add(&reading->graph, &node, err);
	else
		r = error_wrap(err, r, "%s '%.64s'", graph_kind_name(node.kind),
			       node.name);
	free(reading->inputs);
	free(reading->entries);
	reading->inputs = NULL;
	reading->entries = NULL;
	return r;
}

static int read_name(struct reading *reading, json_t *object, struct error *err)
{
	struct graph_node node = {.group = GRAPH_NONE};
	const char *name, *kind;
	int r;

	if (!json_is_object(object))
		return error_set(err, -EINVAL, "it is not an object");
	r = read_text(json_object_get(object, "name"), "name", &name, err);
	if (r < 0)
		return r;
	r = read_text(json_object_get(object, "kind"), "kind", &kind, err);
	if (r < 0)
		return error_wrap(err, r, "'%.64s'", name);
	node.name = (char *)name;
	node.kind = graph_kind_by_name(kind);
	if (node.kind == GRAPH_N_KINDS)
		return error_set(err, -EINVAL,
				 "'%.64s' is of the unknown kind '%.64s'", name,
				 kind);
	return graph_add(&reading->names, &node, err);
}

static int read_names(struct reading *reading, const json_t *nodes,
		      struct error *err)
{
	size_t n = json_array_size(nodes);

	if (!json_is_array(nodes))
		return error_set(err, -EINVAL, "its nodes are not an array");
	if (n > GRAPH_MAX_NODES)
		return error_set(err, -EINVAL, "it has %zu nodes, more than %d",
				 n, GRAPH_MAX_NODES);
	for (size_t i = 0; i < n; i++) {
		int r = read_name(reading, json_array_get(nodes, i), err);

		if (r < 0)
			return error_wrap(err, r, "node %zu", i);
	}
	return graph_index_init(&reading->index, &reading->names, err);
}

static int read_nodes(struct reading *reading, const json_t *nodes,
		      struct error *err)
{
	int r = read_names(reading, nodes, err);

	for (uint32_t i = 0; r == 0 && i < reading->names.n_nodes; i++)
		r = read_node(reading, i, json_array_get(nodes, i), err);
	if (r == 0)
		r = graph_check(&reading->graph, err);
	return r;
}

static int read_document(const json_t *document, struct graph *ret,
			 struct error *err)
{
	const json_t *nodes = json_object_get(document, "nodes");
	struct reading reading = {0};
	int r;

	if (!nodes || json_object_size(document) != 1)
		return error_set(err, -EINVAL,
				 "it is not an object with the one key nodes");
	r = read_nodes(&reading, nodes, err);
	if (r == 0) {
		*ret = reading.graph;
		reading.graph = GRAPH_NULL;
	}
	graph_deinit(&reading.graph);
	graph_deinit(&reading.names);
	graph_index_deinit(&reading.index);
	return r;
}

int graph_json_read(const char *text, size_t size, struct graph *ret,
		    struct error *err)
{
	json_error_t at;
	json_t *document = json_loadb(text, size, JSON_REJECT_DUPLICATES, &at);
	int r;

	if (!document)
		return error_set(err, -EINVAL, "line %d: %s", at.line, at.text);
	r = read_document(document, ret, err);
	json_decref(document);
	return r;
}

/* --- files --------------------------------------------------------------- */

static int read_all(int fd, char *text, size_t size, struct error *err)
{
	while (size) {
		ssize_t n = read(fd, text, size);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return error_errno(err, -errno, "cannot read it");
		if (n == 0)
			return error_set(err, -EIO,
					 "it got shorter while it was read");
		text += n;
		size -= (size_t)n;
	}
	return 0;
}

static int read_fd(int fd, struct graph *ret, struct error *err)
{
	struct stat status;
	char *text;
	int r;

	if (fstat(fd, &status) < 0)
		return error_errno(err, -errno, "cannot inspect it");
	if (!S_ISREG(status.st_mode))
		return error_set(err, -EINVAL, "it is not a regular file");
	if ((uint64_t)status.st_size > GRAPH_JSON_MAX_SIZE)
		return error_set(err, -EFBIG,
				 "it has %jd bytes; a graph has at most %zu",
				 (intmax_t)status.st_size, GRAPH_JSON_MAX_SIZE);
	text = malloc((size_t)status.st_size + 1);
	if (!text)
		return no_memory(err);
	r = read_all(fd, text, (size_t)status.st_size, err);
	if (r == 0)
		r = graph_json_read(text, (size_t)status.st_size, ret, err);
	free(text);
	return r;
}

int graph_json_read_file(const char *path, struct graph *ret, struct error *err)
{
	/* Without O_NONBLOCK, opening a FIFO would block before it can be
	 * refused. */
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	int r;

	if (fd < 0)
		return error_errno(err, -errno, "cannot open %s", path);
	r = read_fd(fd, ret, err);
	(void)close(fd);
	if (r < 0)
		return error_wrap(err, r, "%s", path);
	return 0;
}

/* --- writing ------------------------------------------------------------- */

/*
 * The setters of jansson refuse a NULL value, so one flag at the end tells
 * whether memory ran out anywhere.
 */
struct writing {
	const struct graph *graph;
	json_t *object;
	bool has_failed;
};

static void set(struct writing *writing, enum key key, json_t *value)
{
	if (json_object_set_new(writing->object, keys[key].name, value) < 0)
		writing->has_failed = true;
}

/* The numbers of a checked graph fit, since they are products of at most
 * 2^62. */
static json_t *number(uint64_t value)
{
	return json_integer((json_int_t)value);
}

static void append(struct writing *writing, json_t *array, json_t *value)
{
	if (json_array_append_new(array, value) < 0)
		writing->has_failed = true;
}

static json_t *write_inputs(struct writing *writing,
			    const struct graph_node *node)
{
	json_t *array = json_array();

	for (uint32_t i = 0; i < node->n_inputs; i++)
		append(writing, array,
		       json_string(
			       writing->graph->nodes[node->inputs[i]].name));
	return array;
}

static json_t *write_shape(struct writing *writing,
			   const struct tensor_type *type)
{
	json_t *array = json_array();

	for (uint32_t i = 0; i < type->n_dims; i++)
		append(writing, array, json_integer(type->shape[i]));
	return array;
}

static json_t *write_entries(struct writing *writing,
			     const struct graph_node *node)
{
	json_t *array = json_array();

	for (uint32_t i = 0; i < node->n_entries; i++) {
		const struct graph_entry *entry = &node->entries[i];

		append(writing, array,
		       json_pack("{s:s, s:o, s:o}", "dtype",
				 dtype_name(entry->dtype), "offset",
				 number(entry->offset), "length",
				 number(entry->length)));
	}
	return array;
}

static json_t *write_value(struct writing *writing,
			   const struct graph_node *node, enum key key)
{
	const struct graph *graph = writing->graph;

	switch (key) {
	case KEY_NAME:
		return json_string(node->name);
	case KEY_KIND:
		return json_string(graph_kind_name(node->kind));
	case KEY_INPUTS:
		return write_inputs(writing, node);
	case KEY_CALL:
		return json_string(node->call);
	case KEY_DTYPE:
		return json_string(dtype_name(node->type.dtype));
	case KEY_SHAPE:
		return write_shape(writing, &node->type);
	case KEY_GROUP:
		return json_string(graph->groups[node->group].name);
	case KEY_GROUP_SIZE:
		return number(graph->groups[node->group].size);
	case KEY_REDUCE:
		return json_string(graph_reduce_name(node->reduce));
	case KEY_FSDP:
		return json_boolean(node->tag == GRAPH_IS_FSDP);
	case KEY_INDEX:
		return number(node->index);
	case KEY_ROWS:
		return number(node->rows);
	case KEY_ROW_SIZE:
		return number(node->row_size);
	case KEY_OFFSET:
		return number(node->entries->offset);
	case KEY_LENGTH:
		return number(node->entries->length);
	case KEY_ENTRIES:
		return write_entries(writing, node);
	case N_KEYS:
		break;
	}
	assert(false);
	return NULL;
}

static json_t *write_node(struct writing *writing,
			  const struct graph_node *node)
{
	bool is_tensor = node->type.dtype != 0;

	writing->object = json_object();
	for (int i = 0; i < N_KEYS; i++) {
		enum key key = (enum key)i;

		if (!takes(node->kind, key) ||
		    ((key == KEY_DTYPE || key == KEY_SHAPE) && !is_tensor) ||
		    (key == KEY_FSDP && node->tag == GRAPH_UNTAGGED) ||
		    (key == KEY_INDEX && node->index == 0))
			continue;
		set(writing, key, write_value(writing, node, key));
	}
	return writing->object;
}

struct json_t *graph_json_write(const struct graph *graph)
{
	struct writing writing = {.graph = graph};
	json_t *nodes = json_array(), *document;

	for (uint32_t i = 0; i < graph->n_nodes; i++)
		append(&writing, nodes, write_node(&writing, &graph->nodes[i]));
	document = json_pack("{s:o}", "nodes", nodes);
	if (writing.has_failed) {
		json_decref(document);
		return NULL;
	}
	return document;
}
