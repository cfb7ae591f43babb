/*
 * DLPack capsules of tensors. Each capsule is an export, with a hold of its
 * own.
 */
#pragma once
#include "python.h"

/*
 * Implements Tensor._capsule(versioned, form). Returns a capsule
 * "dltensor_versioned" with the read-only flag, or the older "dltensor", which
 * has no flags. With `form` 0 it shows the tensor as it is, with 1 its elements
 * as unsigned integers of the same size, and with 2 all its bytes in one
 * dimension.
 */
PyObject *dlpack_capsule(PyObject *self, PyObject *args);

/* Returns the (device type, ordinal) of a tensor in DLPack's numbers. */
PyObject *dlpack_device(PyObject *module, PyObject *tensor);
