/*
 * What the broker tells of its tensors, as Python's own types.
 */
#pragma once
#include "python.h"

/* Methods of Client. _list(prefix): a list of dicts. */
PyObject *inspect_list(PyObject *self, PyObject *args);
/* _who(name): a list of dicts. */
PyObject *inspect_who(PyObject *self, PyObject *args);
/* _status(): a dict of counters, and the warnings. */
PyObject *inspect_status(PyObject *self, PyObject *none);
