#include "writer.h"
#include <string.h>

#define MAX_DEPTH 32 /* limit for nested containers */

bool writer_put(struct writer *writer, const void *bytes, size_t size)
{
	if ((size_t)(writer->end - writer->at) < size)
		return false;
	memcpy(writer->at, bytes, size);
	writer->at += size;
	return true;
}

bool writer_put_tag(struct writer *writer, enum tag tag)
{
	char byte = (char)tag;

	return writer_put(writer, &byte, 1);
}

static bool put_sized(struct writer *writer, enum tag tag, const char *bytes,
		      Py_ssize_t size)
{
	int64_t n = size;

	return bytes && writer_put_tag(writer, tag) &&
	       writer_put(writer, &n, sizeof(n)) &&
	       writer_put(writer, bytes, (size_t)size);
}

bool writer_put_count(struct writer *writer, enum tag tag, Py_ssize_t count)
{
	int64_t n = count;

	return writer_put_tag(writer, tag) && writer_put(writer, &n, sizeof(n));
}

static bool put_int(struct writer *writer, PyObject *value)
{
	int64_t n = PyLong_AsLongLong(value);

	return !(n == -1 && PyErr_Occurred()) &&
	       writer_put_tag(writer, TAG_INT) &&
	       writer_put(writer, &n, sizeof(n));
}

static bool put_float(struct writer *writer, PyObject *value)
{
	double n = PyFloat_AsDouble(value);

	return writer_put_tag(writer, TAG_FLOAT) &&
	       writer_put(writer, &n, sizeof(n));
}

static bool put_str(struct writer *writer, PyObject *value)
{
	Py_ssize_t size = 0;
	const char *bytes = PyUnicode_AsUTF8AndSize(value, &size);

	return put_sized(writer, TAG_STR, bytes, size);
}

static bool put_bytes(struct writer *writer, PyObject *value)
{
	return put_sized(writer, TAG_BYTES, PyBytes_AsString(value),
			 PyBytes_Size(value));
}

static bool put_items(struct writer *writer, enum tag tag, PyObject *items,
		      Py_ssize_t n,
		      PyObject *item(PyObject *items, Py_ssize_t i))
{
	if (!writer_put_count(writer, tag, n))
		return false;
	for (Py_ssize_t i = 0; i < n; i++)
		if (!writer_put_value(writer, item(items, i)))
			return false;
	return true;
}

static bool put_dict(struct writer *writer, PyObject *dict)
{
	PyObject *key, *value;
	Py_ssize_t at = 0;

	if (!writer_put_count(writer, TAG_DICT, PyDict_Size(dict)))
		return false;
	while (PyDict_Next(dict, &at, &key, &value))
		if (!writer_put_value(writer, key) ||
		    !writer_put_value(writer, value))
			return false;
	return true;
}

/* A value that occurs twice must stay one object, which only a pickle can
 * express. So its record is removed. */
static bool put_record(struct writer *writer, PyObject *value)
{
	PyObject *id, *record = NULL;
	bool is_put = false;

	if (!writer->records)
		return false;
	id = PyLong_FromVoidPtr(value);
	if (id)
		record = PyDict_GetItemWithError(writer->records, id);
	if (record && PyBytes_Check(record))
		is_put = writer_put(writer, PyBytes_AsString(record),
				    (size_t)PyBytes_Size(record)) &&
			 PyDict_DelItem(writer->records, id) == 0;
	Py_XDECREF(id);
	return is_put;
}

static bool put_container(struct writer *writer, PyObject *value)
{
	PyTypeObject *type = Py_TYPE(value);
	bool is_put = false;

	if (writer->depth == MAX_DEPTH)
		return false;
	writer->depth++;
	if (type == &PyList_Type)
		is_put = put_items(writer, TAG_LIST, value, PyList_Size(value),
				   PyList_GetItem);
	else if (type == &PyTuple_Type)
		is_put = put_items(writer, TAG_TUPLE, value,
				   PyTuple_Size(value), PyTuple_GetItem);
	else if (type == &PyDict_Type)
		is_put = put_dict(writer, value);
	writer->depth--;
	return is_put;
}

bool writer_put_value(struct writer *writer, PyObject *value)
{
	PyTypeObject *type = Py_TYPE(value);

	if (value == Py_None)
		return writer_put_tag(writer, TAG_NONE);
	if (type == &PyBool_Type)
		return writer_put_tag(writer,
				      value == Py_True ? TAG_TRUE : TAG_FALSE);
	if (type == &PyLong_Type)
		return put_int(writer, value);
	if (type == &PyFloat_Type)
		return put_float(writer, value);
	if (type == &PyUnicode_Type)
		return put_str(writer, value);
	if (type == &PyBytes_Type)
		return put_bytes(writer, value);
	return put_container(writer, value) || put_record(writer, value);
}
