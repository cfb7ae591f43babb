/*
 * The keyword arguments of get(), bundle(), aget() and abundle().
 */
#pragma once
#include "client/fsdp.h"
#include "python.h"

/* Converts seconds to milliseconds. None means without limit. Returns 0, or -1
 * with an exception set. */
int options_parse_time(PyObject *seconds, int32_t *ret_ms);

/* The functions that have these arguments; the last two have a version. */
enum options_of {
	OPTIONS_GET,
	OPTIONS_AGET,
	OPTIONS_BUNDLE,
	OPTIONS_ABUNDLE,
};

/* Reads the arguments of a function: what it gets, and keyword arguments.
 * Returns 0, or -1 with an exception set. */
int options_parse(enum options_of function, PyObject *const *args,
		  Py_ssize_t n_args, PyObject *keywords,
		  struct fsdp_get_options *ret);
