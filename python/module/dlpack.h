/*
 * DLPack capsules of a tensor; each is an export, with a hold of its own.
 */
#pragma once
#include "python.h"

/*
 * Tensor._capsule(versioned, form): a capsule "dltensor_versioned" with the
 * read-only flag, or the older "dltensor", which has no flags. `form` is 0 for
 * the tensor as it is, 1 for its elements as unsigned integers of their size,
 * and 2 for all its bytes in one dimension.
 */
PyObject *dlpack_capsule(PyObject *self, PyObject *args);

/* (device type, ordinal) of a tensor, as DLPack numbers them. */
PyObject *dlpack_device(PyObject *module, PyObject *tensor);
