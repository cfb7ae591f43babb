/*
 * Messages between two ranks of a communicator (comm.h).
 */
#pragma once
#include "call.h"
#include "client/fsdp.h"

struct fsdp_comm;

/* These are in comm.c, for one call of libfsdp on a Comm. If comm_begin()
 * returns -1 with an exception set, comm_end() must not be called. comm_end()
 * raises the error of `r`; it returns 0, or -1 with an exception set. */
int comm_begin(PyObject *comm, struct call *call);
int comm_end(PyObject *comm, struct call *call, int r);
struct fsdp_comm *comm_of(PyObject *comm); /* NULL if this process has left */

/* These implement Comm.send(dtype, address, count, rank, tag) and
 * Comm.receive(), and return a Transfer. */
PyObject *transfer_send(PyObject *comm, PyObject *args);
PyObject *transfer_receive(PyObject *comm, PyObject *args);

int transfer_add(PyObject *module);
