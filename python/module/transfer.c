#include "transfer.h"
#include "client/fsdp_collective.h"
#include "errors.h"
#include "options.h"
#include "type.h"
#include <errno.h>

static PyTypeObject *transfer_type;

struct transfer {
	PyObject_HEAD PyObject *comm;
	struct fsdp_transfer *transfer; /* NULL if complete */
	uint32_t rank; /* if complete: the rank at the other end */
};

/* If this fails, nothing can wait for the transfer, and the communicator frees
 * it. */
static PyObject *transfer_new(PyObject *comm, struct fsdp_transfer *begun)
{
	struct transfer *transfer =
		PyObject_New(struct transfer, transfer_type);

	if (!transfer)
		return NULL;
	transfer->comm = Py_NewRef(comm);
	transfer->transfer = begun;
	transfer->rank = 0;
	return (PyObject *)transfer;
}

PyObject *transfer_send(PyObject *comm, PyObject *args)
{
	unsigned long long address, count, tag;
	struct fsdp_transfer *begun;
	unsigned dtype, rank;
	struct call call;
	int r;

	if (!PyArg_ParseTuple(args, "IKKIK", &dtype, &address, &count, &rank,
			      &tag) ||
	    comm_begin(comm, &call) < 0)
		return NULL;
	r = fsdp_send(comm_of(comm), (enum fsdp_dtype)dtype,
		      (void *)(uintptr_t)address, count, rank, tag, &begun);
	return comm_end(comm, &call, r) < 0 ? NULL : transfer_new(comm, begun);
}

static int parse_rank(PyObject *rank, uint32_t *ret)
{
	unsigned long number = FSDP_ANY_RANK;

	if (rank != Py_None)
		number = PyLong_AsUnsignedLong(rank);
	*ret = (uint32_t)number;
	return PyErr_Occurred() ? -1 : 0;
}

PyObject *transfer_receive(PyObject *comm, PyObject *args)
{
	unsigned long long address, count, tag;
	struct fsdp_transfer *begun;
	struct call call;
	unsigned dtype;
	PyObject *from;
	uint32_t rank;
	int r;

	if (!PyArg_ParseTuple(args, "IKKOK", &dtype, &address, &count, &from,
			      &tag) ||
	    parse_rank(from, &rank) < 0 || comm_begin(comm, &call) < 0)
		return NULL;
	r = fsdp_receive(comm_of(comm), (enum fsdp_dtype)dtype,
			 (void *)(uintptr_t)address, count, rank, tag, &begun);
	return comm_end(comm, &call, r) < 0 ? NULL : transfer_new(comm, begun);
}

/* Implements wait(timeout). Returns whether the transfer is complete. */
static PyObject *transfer_wait(PyObject *self, PyObject *time)
{
	struct transfer *transfer = (struct transfer *)self;
	int32_t timeout_ms;
	struct call call;
	int r;

	if (!transfer->transfer)
		Py_RETURN_TRUE;
	if (options_parse_time(time, &timeout_ms) < 0 ||
	    comm_begin(transfer->comm, &call) < 0)
		return NULL;
	r = fsdp_transfer_wait(transfer->transfer, timeout_ms, &transfer->rank);
	if (r == 0)
		transfer->transfer = NULL;
	if (comm_end(transfer->comm, &call, r == -ETIMEDOUT ? 0 : r) < 0)
		return NULL;
	return PyBool_FromLong(r == 0);
}

static PyObject *transfer_rank(PyObject *self, void *data)
{
	(void)data;
	return PyLong_FromUnsignedLong(((struct transfer *)self)->rank);
}

static void transfer_dealloc(PyObject *self)
{
	PyTypeObject *type = Py_TYPE(self);

	Py_DECREF(((struct transfer *)self)->comm);
	PyObject_Free(self);
	Py_DECREF(type);
}

static PyMethodDef methods[] = {
	{"wait", transfer_wait, METH_O,
	 "wait(timeout): return whether it is complete. Then the memory may\n"
	 "be used again."},
	{NULL, NULL, 0, NULL},
};

static PyGetSetDef attributes[] = {
	{"rank", transfer_rank, NULL,
	 "Of a complete transfer: the rank of the other end.", NULL},
	{NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
	{Py_tp_dealloc, transfer_dealloc},
	{Py_tp_methods, methods},
	{Py_tp_getset, attributes},
	{0, NULL},
};

int transfer_add(PyObject *module)
{
	transfer_type =
		type_add(module, "fsdp._fsdp.Transfer", sizeof(struct transfer),
			 Py_TPFLAGS_DISALLOW_INSTANTIATION, slots);
	return transfer_type ? 0 : -1;
}
