/*
 * fsdp.Tensor is a version of a tensor that is held.
 */
#pragma once
#include "handle.h"
#include "python.h"

extern PyTypeObject *tensor_type;

struct tensor {
	PyObject_HEAD struct handle *handle;
	/* holds of this object, without those of its exports */
	uint32_t n_holds;
};

/* Makes a Tensor. Consumes `held`, also on failure. Returns NULL with an
 * exception set on failure. */
PyObject *tensor_new(struct link *link, struct fsdp_tensor *held);

/* Does the same for a handle, and consumes the caller's use and hold of it. */
PyObject *tensor_wrap(struct handle *handle);

/* Does the same for `n` held tensors, and returns a list. */
PyObject *tensor_list(struct link *link, struct fsdp_tensor *const *held,
		      size_t n);

/* Returns the Tensor of an argument, or NULL with TypeError set. */
struct tensor *tensor_of(PyObject *object);

/* Adds the type to the module. Returns 0, or -1 with an exception set. */
int tensor_add(PyObject *module);
