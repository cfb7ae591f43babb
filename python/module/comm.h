/*
 * Communicators: a process as a rank, and its collectives on memory of its own.
 * fsdp.distributed is the only user.
 */
#pragma once
#include "python.h"

/* Client._join(name, n_ranks, rank, timeout): a Comm. */
PyObject *comm_join(PyObject *client, PyObject *args);

/* fold(dtype, how, inputs, output, count), of addresses: fsdp_fold(). */
PyObject *comm_fold(PyObject *module, PyObject *args);

int comm_add(PyObject *module);
