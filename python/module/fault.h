/*
 * A store to a read-only tensor ends the process by SIGSEGV, since torch has no
 * tensors that refuse a write. fsdp installs a handler on request. It prints
 * the name of that tensor, and then lets the previous handler run, such as that
 * of Python's faulthandler, which shows the line.
 */
#pragma once
#include "python.h"

/* Implements _fsdp.watch_faults(): installs the handler, once. */
PyObject *fault_watch(PyObject *module, PyObject *none);
