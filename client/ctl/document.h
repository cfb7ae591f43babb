/*
 * Output for programs: one JSON document on standard output.
 *
 * The functions that make values return NULL if memory runs out. jansson's
 * setters refuse NULL, so the document becomes NULL as well, and only
 * document_print() has to report the error.
 */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct error;

/* Makes a string of text that may not be UTF-8, such as a command. If it is
 * not, each byte above 127 becomes '?'. */
json_t *document_text(const char *text);
/* Makes a number. Values from 2^63 on become 2^63 - 1, the largest that JSON
 * readers accept. */
json_t *document_number(uint64_t value);
json_t *document_shape(const int64_t *shape, uint32_t n_dims);

/* Prints the document. Consumes it, also on failure. */
int document_print(json_t *document, struct error *err);
