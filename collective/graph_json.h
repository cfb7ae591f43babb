/*
 * Graphs as JSON, the same schema in both directions (docs/graph.md).
 *
 * Reading refuses a key that occurs twice, an unknown key, a key that the
 * node's kind does not take, and a number with a fraction.
 */
#pragma once
#include <stddef.h>

struct error;
struct graph;
struct json_t; /* of jansson */

#define GRAPH_JSON_MAX_SIZE ((size_t)64 << 20)

/* What is read also passes graph_check(). */
int graph_json_read(const char *text, size_t size, struct graph *ret,
		    struct error *err);
/* A regular file of at most GRAPH_JSON_MAX_SIZE. */
int graph_json_read_file(const char *path, struct graph *ret,
			 struct error *err);

/* A new document, or NULL if memory ran out. */
struct json_t *graph_json_write(const struct graph *graph);
