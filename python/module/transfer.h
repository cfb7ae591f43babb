/*
 * Messages between two ranks of a communicator (comm.h).
 */
#pragma once
#include "call.h"
#include "client/fsdp.h"

struct fsdp_comm;

/* Of a Comm, in comm.c: one call of libfsdp. comm_begin() returns -1 with an
 * exception; then there is no comm_end(), which raises what `r` says and
 * returns -1, or 0. */
int comm_begin(PyObject *comm, struct call *call);
int comm_end(PyObject *comm, struct call *call, int r);
struct fsdp_comm *comm_of(PyObject *comm); /* NULL: it was left */

/* Comm.send(dtype, address, count, rank, tag), and Comm.receive(): a Transfer.
 */
PyObject *transfer_send(PyObject *comm, PyObject *args);
PyObject *transfer_receive(PyObject *comm, PyObject *args);

int transfer_add(PyObject *module);
