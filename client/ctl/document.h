/*
 * Output for programs: one JSON document on standard output.
 *
 * The functions that make values return NULL if memory runs out. jansson's
 * setters refuse NULL, so the document becomes NULL as well, and only
 * document_print() has to report the error.
 */
#pragma once
#include "client/monitor/document.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct error;

/* Makes a number. Values from 2^63 on become 2^63 - 1, the largest that JSON
 * readers accept. */
json_t *document_number(uint64_t value);

/* Prints the document. Consumes it, also on failure. */
int document_print(json_t *document, struct error *err);
