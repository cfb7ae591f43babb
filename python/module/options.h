/*
 * The keyword arguments of get() and bundle(), and of aget() and abundle().
 */
#pragma once
#include "client/fsdp.h"
#include "python.h"

/* Seconds; None is for ever. -1, with an exception. */
int options_parse_time(PyObject *seconds, int32_t *ret_ms);

/* `names` is a tuple or NULL, and `values` as many. -1, with an exception. */
int options_parse(PyObject *const *values, PyObject *names,
		  struct fsdp_get_options *ret);
