#include "names.h"
#include <stdlib.h>
#include <string.h>

const char *name_of(PyObject *name)
{
	Py_ssize_t size;
	const char *text = PyUnicode_AsUTF8AndSize(name, &size);

	if (text && strlen(text) != (size_t)size) {
		PyErr_SetString(PyExc_ValueError, "a name contains a NUL");
		return NULL;
	}
	return text;
}

int names_open(struct names *ret, PyObject *iterable)
{
	struct names names;

	names.tuple = PySequence_Tuple(iterable);
	if (!names.tuple)
		return -1;
	names.n = (size_t)PyTuple_Size(names.tuple);
	names.items = calloc(names.n ? names.n : 1, sizeof(*names.items));
	if (!names.items)
		PyErr_NoMemory();
	for (size_t i = 0; names.items && i < names.n; i++) {
		names.items[i] =
			name_of(PyTuple_GetItem(names.tuple, (Py_ssize_t)i));
		if (!names.items[i]) {
			free(names.items);
			names.items = NULL;
		}
	}
	if (!names.items) {
		Py_DECREF(names.tuple);
		return -1;
	}
	*ret = names;
	return 0;
}

void names_close(struct names *names)
{
	free(names->items);
	Py_DECREF(names->tuple);
}
