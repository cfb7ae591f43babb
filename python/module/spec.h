/*
 * Types of tensors, as Python says them.
 */
#pragma once
#include "client/fsdp.h"
#include "python.h"

/* 0: there is no such name. */
enum fsdp_dtype spec_dtype(const char *name);

/* `shape` is an iterable of int, `dtype` a name. -1, with an exception. */
int spec_parse(PyObject *shape, PyObject *dtype, struct fsdp_spec *ret);

/* Of a list of (shape, dtype): an array to free(). NULL, with an exception. */
struct fsdp_spec *spec_parse_list(PyObject *list);

/* A sequence of at most FSDP_MAX_DIMS int. -1, with an exception. */
int spec_parse_dims(PyObject *dims, const char *what, int64_t *ret,
		    uint32_t *ret_n);

/* A tuple. */
PyObject *spec_dims(const int64_t *dims, uint32_t n);
