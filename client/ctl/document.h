/*
 * Output for programs: one JSON document on standard output.
 *
 * The makers never fail halfway: when memory runs out they give NULL, which
 * jansson's setters refuse, and document_print() says so in the end.
 */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct error;

/* Text that may not be UTF-8, such as a command; what is not becomes '?'. */
json_t *document_text(const char *text);
/* 2^63 and more become 2^63 - 1: JSON readers could not take them. */
json_t *document_number(uint64_t value);
json_t *document_shape(const int64_t *shape, uint32_t n_dims);

/* Print and drop `document`. */
int document_print(json_t *document, struct error *err);
