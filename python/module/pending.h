/*
 * fsdp._fsdp.Pending: a get that does not wait, for asyncio.
 */
#pragma once
#include "client/fsdp.h"
#include "python.h"

/* NULL, with an exception. */
PyObject *pending_begin(PyObject *client, PyObject *names,
			const struct fsdp_get_options *options);

/* The same of a bundle: its end() returns what Client._bundle() does. */
PyObject *pending_begin_bundle(PyObject *client, PyObject *name,
			       const struct fsdp_get_options *options);

/* Adds the type to the module; -1 with an exception. */
int pending_add(PyObject *module);
