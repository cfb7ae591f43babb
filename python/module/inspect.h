/*
 * The broker's reports about its tensors, as Python's own types.
 */
#pragma once
#include "python.h"

/* These implement methods of Client. _list(prefix) returns a list of dicts. */
PyObject *inspect_list(PyObject *self, PyObject *args);
/* _who(name) returns a list of dicts. */
PyObject *inspect_who(PyObject *self, PyObject *args);
/* _status() returns a dict of counters, and the warnings. */
PyObject *inspect_status(PyObject *self, PyObject *none);
