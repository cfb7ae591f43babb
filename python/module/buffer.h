/*
 * The buffer protocol: memoryview(tensor), numpy.asarray(tensor). Each buffer
 * is an export, with a hold of its own.
 */
#pragma once
#include "python.h"

int buffer_get(PyObject *self, Py_buffer *view, int flags);
void buffer_release(PyObject *self, Py_buffer *view);

/* Tensor.copy_from(). */
PyObject *buffer_copy_from(PyObject *self, PyObject *source);

/* Adds the type Bits: a tensor's elements as unsigned integers of their size,
 * for the dtypes that the buffer protocol has no letter for. */
int buffer_add(PyObject *module);
