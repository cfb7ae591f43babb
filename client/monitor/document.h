/*
 * Values of the JSON documents of fsdpctl and fsdp-exporter. NULL means that
 * there is no memory.
 */
#pragma once
#include <jansson.h>
#include <stdint.h>

/* Makes a string of text that may not be UTF-8, such as a command. If it is
 * not, each byte above 127 becomes '?'. */
json_t *document_text(const char *text);
json_t *document_shape(const int64_t *shape, uint32_t n_dims);
