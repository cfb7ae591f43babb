/*
 * Graphs are read from and written to JSON in the same schema (docs/graph.md).
 *
 * Reading refuses a key that occurs twice, an unknown key, a key that the
 * node's kind does not take, and a number with a fraction.
 */
#pragma once
#include <stddef.h>

struct error;
struct graph;
struct json_t; /* jansson's type */

#define GRAPH_JSON_MAX_SIZE ((size_t)64 << 20)

/* Reads a graph and checks it with graph_check(). */
int graph_json_read(const char *text, size_t size, struct graph *ret,
		    struct error *err);
/* Reads a regular file of at most GRAPH_JSON_MAX_SIZE bytes. */
int graph_json_read_file(const char *path, struct graph *ret,
			 struct error *err);

/* Returns a new document, or NULL if there is no memory. */
struct json_t *graph_json_write(const struct graph *graph);
