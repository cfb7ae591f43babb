/*
 * Bundles: fsdp._fsdp.Stage makes one, and bundle_get() gets all of one at
 * once. fsdp._bundle has the classes that users see.
 */
#pragma once
#include "python.h"
#include <stddef.h>

struct fsdp_tensor;
struct link;

/* Client._bundle(name, **options of get()): (version, {name: Tensor}), the
 * names without that of the bundle. */
PyObject *bundle_get(PyObject *client, PyObject *const *args, Py_ssize_t n_args,
		     PyObject *keywords);

/* The same of tensors that were got; consumes them and the array. */
PyObject *bundle_members(struct link *link, PyObject *name,
			 struct fsdp_tensor **tensors, size_t n);

/* Client._shows(tensor): is it still what its name shows? No system call. */
PyObject *bundle_shows(PyObject *client, PyObject *tensor);

/* Client._stage(name, flags, ttl_ms, mode, gid, size_hint, device,
 * timeout, keep): a Stage. */
PyObject *bundle_stage(PyObject *client, PyObject *args);

/* Adds the type to the module; -1 with an exception. */
int bundle_add(PyObject *module);
