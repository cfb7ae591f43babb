/*
 * Communicators: this process as a rank, and its collectives on memory of its
 * own. Only fsdp.distributed uses them.
 */
#pragma once
#include "python.h"

/* Implements Client._join(name, n_ranks, rank, timeout). Returns a Comm. */
PyObject *comm_join(PyObject *client, PyObject *args);

/* Implements fold(dtype, how, inputs, output, count) by fsdp_fold(). Inputs and
 * output are addresses. */
PyObject *comm_fold(PyObject *module, PyObject *args);

int comm_add(PyObject *module);
