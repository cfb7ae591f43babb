/*
 * The values of plain batches (plain.h), as they are written.
 */
#pragma once
#include "dlpack_abi.h"
#include "python.h"
#include <stdbool.h>
#include <stdint.h>

enum tag {
	TAG_NONE = 'N',
	TAG_TRUE = 'T',
	TAG_FALSE = 'F',
	TAG_INT = 'i',
	TAG_FLOAT = 'f',
	TAG_STR = 's',
	TAG_BYTES = 'b',
	TAG_LIST = 'l',
	TAG_TUPLE = 't',
	TAG_DICT = 'd',
	TAG_TENSOR = 'x'
};

/* After TAG_TENSOR. */
struct plain_tensor {
	uint64_t at; /* in the memory of the message */
	struct dl_dtype dtype;
	uint32_t n_dims; /* as many int64_t follow: the shape */
};

struct writer {
	char *at, *end;
	/* What is written in place of values that are not plain, by their id();
	 * each once. NULL: there is nothing. */
	PyObject *records;
	unsigned int depth;
};

/* False: there is no room. */
bool writer_put(struct writer *writer, const void *bytes, size_t size);
bool writer_put_tag(struct writer *writer, enum tag tag);
bool writer_put_count(struct writer *writer, enum tag tag, Py_ssize_t count);

/* False, perhaps with an exception: it is not plain, or there is no room. */
bool writer_put_value(struct writer *writer, PyObject *value);
