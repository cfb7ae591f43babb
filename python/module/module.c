/*
 * fsdp._fsdp is libfsdp for Python. Only the package fsdp uses it.
 */
#include "buffer.h"
#include "bundle.h"
#include "channel.h"
#include "client.h"
#include "client/fsdp.h"
#include "comm.h"
#include "dlpack.h"
#include "fault.h"
#include "link.h"
#include "pending.h"
#include "pieces.h"
#include "plain.h"
#include "private.h"
#include "python.h"
#include "range.h"
#include "stack.h"
#include "tensor.h"

static PyObject *dtypes(PyObject *module, PyObject *none)
{
	PyObject *dict = PyDict_New();

	(void)module;
	(void)none;
	for (int i = FSDP_BOOL; dict; i++) {
		size_t size = fsdp_dtype_size((enum fsdp_dtype)i);
		PyObject *number;

		if (!size)
			break;
		number = PyLong_FromSize_t(size);
		if (!number ||
		    PyDict_SetItemString(dict,
					 fsdp_dtype_name((enum fsdp_dtype)i),
					 number) < 0)
			Py_CLEAR(dict);
		Py_XDECREF(number);
	}
	return dict;
}

/* Implements find_export(address, size). Returns a Tensor, or None. */
static PyObject *find_export(PyObject *module, PyObject *args)
{
	unsigned long long address, size;
	struct handle *handle;

	(void)module;
	if (!PyArg_ParseTuple(args, "KK", &address, &size))
		return NULL;
	handle = range_find((void *)(uintptr_t)address, size);
	if (!handle)
		Py_RETURN_NONE;
	return tensor_wrap(handle);
}

static PyObject *leave_open(PyObject *module, PyObject *none)
{
	(void)module;
	(void)none;
	link_leave_open();
	Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
	{"dlpack_device", dlpack_device, METH_O, NULL},
	{"dtypes", dtypes, METH_NOARGS, NULL},
	{"fill_item", pieces_fill, METH_VARARGS, NULL},
	{"find_export", find_export, METH_VARARGS, NULL},
	{"fold", comm_fold, METH_VARARGS, NULL},
	{"leave_open", leave_open, METH_NOARGS, NULL},
	{"read_plain", plain_read, METH_VARARGS, NULL},
	{"size_of_item", pieces_size, METH_O, NULL},
	{"split_item", pieces_split, METH_O, NULL},
	{"stack_plain", stack_plain, METH_VARARGS, NULL},
	{"watch_faults", fault_watch, METH_NOARGS, NULL},
	{"write_plain", plain_write, METH_VARARGS, NULL},
	{NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
	PyModuleDef_HEAD_INIT,
	.m_name = "fsdp._fsdp",
	.m_doc = "libfsdp for the package fsdp.",
	.m_size = -1, /* no sub-interpreters: the types are static variables */
	.m_methods = functions,
};

/* The interpreter finds this function by its name. */
PyMODINIT_FUNC PyInit__fsdp(void);

PyMODINIT_FUNC PyInit__fsdp(void)
{
	PyObject *module = PyModule_Create(&definition);

	if (!module)
		return NULL;
	if (tensor_add(module) < 0 || buffer_add(module) < 0 ||
	    client_add(module) < 0 || channel_add(module) < 0 ||
	    comm_add(module) < 0 || pending_add(module) < 0 ||
	    bundle_add(module) < 0 || private_add(module) < 0 ||
	    PyModule_AddStringConstant(module, "version", fsdp_version()) < 0)
		Py_CLEAR(module);
	return module;
}
