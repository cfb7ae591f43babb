/*
 * fsdp._fsdp.Pending is a get that does not block, for asyncio.
 */
#pragma once
#include "client/fsdp.h"
#include "python.h"

/* Returns a Pending, or NULL with an exception set. */
PyObject *pending_begin(PyObject *client, PyObject *names,
			const struct fsdp_get_options *options);

/* Does the same for a bundle. The end() of this Pending returns what
 * Client._bundle() returns. */
PyObject *pending_begin_bundle(PyObject *client, PyObject *name,
			       const struct fsdp_get_options *options);

/* Adds the type to the module. Returns 0, or -1 with an exception set. */
int pending_add(PyObject *module);
