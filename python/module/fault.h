/*
 * A store to a read-only tensor ends the process by SIGSEGV, since torch has no
 * tensors that it would refuse to write. Once asked for, a handler says first
 * which tensor that was; then the handler runs that was there before, such as
 * that of Python's faulthandler, which shows the line.
 */
#pragma once
#include "python.h"

/* _fsdp.watch_faults(): installs the handler, once. */
PyObject *fault_watch(PyObject *module, PyObject *none);
