/*
 * The buffer protocol of tensors, for memoryview(tensor) and
 * numpy.asarray(tensor). Each buffer is an export, with a hold of its own.
 */
#pragma once
#include "python.h"

int buffer_get(PyObject *self, Py_buffer *view, int flags);
void buffer_release(PyObject *self, Py_buffer *view);

/* Implements Tensor.copy_from(). */
PyObject *buffer_copy_from(PyObject *self, PyObject *source);

/* Adds the types to the module. This includes Bits, which shows a tensor's
 * elements as unsigned integers of the same size, for dtypes without a letter
 * in the buffer protocol. Returns 0, or -1 with an exception set. */
int buffer_add(PyObject *module);
