/*
 * fsdp.Tensor: one tensor version, held.
 */
#pragma once
#include "handle.h"
#include "python.h"

extern PyTypeObject *tensor_type;

struct tensor {
	PyObject_HEAD struct handle *handle;
	uint32_t n_holds; /* of this object, without those of its exports */
};

/* Consumes `held`, also on failure (NULL, with an exception). */
PyObject *tensor_new(struct link *link, struct fsdp_tensor *held);

/* The same of a handle, whose use and hold it consumes. */
PyObject *tensor_wrap(struct handle *handle);

/* The same of `n` held ones: a list. */
PyObject *tensor_list(struct link *link, struct fsdp_tensor *const *held,
		      size_t n);

/* Of an argument; NULL, with TypeError. */
struct tensor *tensor_of(PyObject *object);

/* Adds the type to the module; -1 with an exception. */
int tensor_add(PyObject *module);
