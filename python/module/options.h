/*
 * The keyword arguments of get(), bundle(), aget() and abundle().
 */
#pragma once
#include "client/fsdp.h"
#include "python.h"

/* Converts seconds to milliseconds. None means without limit. Returns 0, or -1
 * with an exception set. */
int options_parse_time(PyObject *seconds, int32_t *ret_ms);

/* Reads the keyword arguments. `names` is a tuple or NULL, and `values` has a
 * value for each name. Returns 0, or -1 with an exception set. */
int options_parse(PyObject *const *values, PyObject *names,
		  struct fsdp_get_options *ret);
