/*
 * A store to a read-only tensor ends the process by SIGSEGV, since torch has no
 * tensors that it would refuse to write. Once asked for, a handler says first
 * which tensor that was; then the handler runs that was there before, such as
 * that of Python's faulthandler, which shows the line.
 */
#pragma once
#include "python.h"
#include <stddef.h>

struct fault_range;

/* Memory where a store faults. NULL: there are too many; it has no name then.
 * Any thread, no Python. */
struct fault_range *fault_range_new(const void *start, size_t size,
				    const char *name);
void fault_range_end(struct fault_range *range);

/* _fsdp.watch_faults(): installs the handler, once. */
PyObject *fault_watch(PyObject *module, PyObject *none);
