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

/* Follows TAG_TENSOR. */
struct plain_tensor {
	uint64_t at; /* offset in the memory of the message */
	struct dl_dtype dtype;
	uint32_t n_dims; /* as many int64_t follow, which are the shape */
};

struct writer {
	char *at, *end;
	/* Bytes that are written for values that are not plain, by their id().
	 * Each is used once. NULL if there are none. */
	PyObject *records;
	unsigned int depth;
};

/* These return false if there is not enough space. */
bool writer_put(struct writer *writer, const void *bytes, size_t size);
bool writer_put_tag(struct writer *writer, enum tag tag);
bool writer_put_count(struct writer *writer, enum tag tag, Py_ssize_t count);

/* Returns false if the value is not plain or does not fit, possibly with an
 * exception set. */
bool writer_put_value(struct writer *writer, PyObject *value);
