/*
 * Bundles: fsdp._fsdp.Stage makes one, and bundle_get() gets all its members at
 * once. fsdp._bundle has the classes that users see.
 */
#pragma once
#include "python.h"
#include <stddef.h>

struct fsdp_tensor;
struct link;

/* Implements Client._bundle(name, **options of get()). Returns (version, {name:
 * Tensor}); these names are without that of the bundle. */
PyObject *bundle_get(PyObject *client, PyObject *const *args, Py_ssize_t n_args,
		     PyObject *keywords);

/* Returns the same for tensors that were already got. Consumes the tensors and
 * the array. */
PyObject *bundle_members(struct link *link, PyObject *name,
			 struct fsdp_tensor **tensors, size_t n);

/* Implements Client._shows(tensor): returns whether its name still shows this
 * version. It makes no system call. */
PyObject *bundle_shows(PyObject *client, PyObject *tensor);

/* Implements Client._stage(name, flags, ttl_ms, mode, gid, size_hint, device,
 * timeout, keep). Returns a Stage. */
PyObject *bundle_stage(PyObject *client, PyObject *args);

/* Adds the type to the module. Returns 0, or -1 with an exception set. */
int bundle_add(PyObject *module);
