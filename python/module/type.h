/* Types of the module. */
#pragma once
#include "python.h"

/* Makes a type, and adds it to the module. `name` is the full name; `size` is
 * that of an object in bytes; `flags` are added to Py_TPFLAGS_DEFAULT. Returns
 * a new reference, or NULL with an exception. */
PyTypeObject *type_add(PyObject *module, const char *name, size_t size,
		       unsigned int flags, PyType_Slot *slots);
