/*
 * Types of tensors as Python passes them.
 */
#pragma once
#include "client/fsdp.h"
#include "python.h"

/* Reads a type: `shape` is an iterable of int, and `dtype` is a name. Returns
 * 0, or -1 with an exception set. */
int spec_parse(PyObject *shape, PyObject *dtype, struct fsdp_spec *ret);

/* Reads a list of (shape, dtype). Returns an array, which the caller frees, or
 * NULL with an exception set. */
struct fsdp_spec *spec_parse_list(PyObject *list);

/* Reads a sequence of at most FSDP_MAX_DIMS int. Returns 0, or -1 with an
 * exception set. */
int spec_parse_dims(PyObject *dims, const char *what, int64_t *ret,
		    uint32_t *ret_n);

/* Returns a tuple. */
PyObject *spec_dims(const int64_t *dims, uint32_t n);
