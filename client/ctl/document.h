/*
 * JSON documents: output for programs, one on standard output, and input from
 * files.
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
struct stat;

/* Makes a number. Values from 2^63 on become 2^63 - 1, the largest that JSON
 * readers accept. */
json_t *document_number(uint64_t value);

/* Prints the document. Consumes it, also on failure. */
int document_print(json_t *document, struct error *err);

/* Reads a document, and the status of its file. */
int document_read(const char *path, json_t **ret, struct stat *ret_status,
		  struct error *err);
