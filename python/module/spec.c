#include "spec.h"
#include "errors.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Returns 0 if no dtype has that name. */
static enum fsdp_dtype find_dtype(const char *name)
{
	for (int i = FSDP_BOOL; fsdp_dtype_size((enum fsdp_dtype)i); i++)
		if (strcmp(name, fsdp_dtype_name((enum fsdp_dtype)i)) == 0)
			return (enum fsdp_dtype)i;
	return 0;
}

static int parse_dim(PyObject *dims, const char *what, Py_ssize_t i,
		     int64_t *ret)
{
	PyObject *dim = PySequence_GetItem(dims, i);
	PyObject *index = dim ? PyNumber_Index(dim) : NULL;

	Py_XDECREF(dim);
	if (!index)
		return -1;
	*ret = PyLong_AsLongLong(index);
	Py_DECREF(index);
	if (*ret != -1 || !PyErr_Occurred())
		return 0;
	if (PyErr_ExceptionMatches(PyExc_OverflowError)) {
		PyErr_Clear();
		errors_raise_text(-EOVERFLOW, "%s[%zd] is beyond 64 bits", what,
				  i);
	}
	return -1;
}

int spec_parse_dims(PyObject *dims, const char *what, int64_t *ret,
		    uint32_t *ret_n)
{
	Py_ssize_t n = PySequence_Size(dims);

	if (n < 0)
		return -1;
	if (n > FSDP_MAX_DIMS) {
		errors_raise_text(-EINVAL,
				  "%s has %zd dimensions; a tensor has at "
				  "most %d",
				  what, n, FSDP_MAX_DIMS);
		return -1;
	}
	for (Py_ssize_t i = 0; i < n; i++)
		if (parse_dim(dims, what, i, &ret[i]) < 0)
			return -1;
	*ret_n = (uint32_t)n;
	return 0;
}

int spec_parse(PyObject *shape, PyObject *dtype, struct fsdp_spec *ret)
{
	const char *name = PyUnicode_AsUTF8AndSize(dtype, NULL);

	if (!name)
		return -1;
	*ret = (struct fsdp_spec){.dtype = find_dtype(name)};
	if (!ret->dtype) {
		errors_raise_text(-EINVAL,
				  "there is no dtype \"%s\"; fsdp.DTYPES lists "
				  "them",
				  name);
		return -1;
	}
	return spec_parse_dims(shape, "shape", ret->shape, &ret->n_dims);
}

struct fsdp_spec *spec_parse_list(PyObject *list)
{
	size_t n = (size_t)PyList_Size(list);
	struct fsdp_spec *specs = calloc(n + 1, sizeof(*specs));

	if (!specs)
		return (void *)PyErr_NoMemory();
	for (size_t i = 0; i < n; i++) {
		PyObject *pair = PyList_GetItem(list, (Py_ssize_t)i);
		PyObject *shape, *dtype;

		if (PyArg_ParseTuple(pair, "OU", &shape, &dtype) &&
		    spec_parse(shape, dtype, &specs[i]) == 0)
			continue;
		free(specs);
		return NULL;
	}
	return specs;
}

PyObject *spec_dims(const int64_t *dims, uint32_t n)
{
	PyObject *tuple = PyTuple_New((Py_ssize_t)n);

	for (uint32_t i = 0; tuple && i < n; i++) {
		PyObject *dim = PyLong_FromLongLong(dims[i]);

		if (!dim || PyTuple_SetItem(tuple, (Py_ssize_t)i, dim) < 0)
			Py_CLEAR(tuple);
	}
	return tuple;
}
