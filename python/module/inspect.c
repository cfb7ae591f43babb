#include "inspect.h"
#include "call.h"
#include "client.h"
#include "errors.h"
#include "spec.h"
#include <errno.h>
#include <stdlib.h>

/* libfsdp calls back while other Python threads run: each entry becomes an
 * object under the interpreter's lock. */
struct collection {
	PyObject *objects; /* a list or a dict */
};

/* Stop, with the exception left in the thread. */
#define STOP (-ECANCELED)

static int add(struct collection *collection, PyObject *object)
{
	int r = object ? PyList_Append(collection->objects, object) : -1;

	Py_XDECREF(object);
	return r < 0 ? STOP : 0;
}

static PyObject *entry_dict(const struct fsdp_entry *entry)
{
	const struct fsdp_info *info = entry->info;
	char device[FSDP_DEVICE_TEXT];

	fsdp_device_format(&info->device, device);
	return Py_BuildValue(
		"{s:s,s:K,s:s,s:N,s:K,s:s,s:I,s:I,s:I,s:K,s:K,s:I,s:z#}",
		"name", info->name, "version",
		(unsigned long long)info->version, "dtype",
		fsdp_dtype_name(info->dtype), "shape",
		spec_dims(info->shape, info->n_dims), "nbytes",
		(unsigned long long)info->size, "device", device, "uid",
		entry->uid, "gid", entry->gid, "mode", entry->mode, "age_ms",
		(unsigned long long)entry->age_ms, "ttl_left_ms",
		(unsigned long long)entry->ttl_left_ms, "n_holders",
		entry->n_holders, "bundle",
		entry->bundle_name_size ? info->name : NULL,
		(Py_ssize_t)entry->bundle_name_size);
}

static int on_entry(const struct fsdp_entry *entry, void *data)
{
	PyGILState_STATE gil = PyGILState_Ensure();
	int r = add(data, entry_dict(entry));

	PyGILState_Release(gil);
	return r;
}

static int on_holder(const struct fsdp_holder *holder, void *data)
{
	PyGILState_STATE gil = PyGILState_Ensure();
	int r = add(data, Py_BuildValue("{s:I,s:I,s:s,s:L,s:N,s:N}", "pid",
					holder->pid, "uid", holder->uid,
					"command", holder->command, "holds",
					(long long)holder->holds, "connected",
					PyBool_FromLong(holder->is_connected),
					"writer",
					PyBool_FromLong(holder->is_writer)));

	PyGILState_Release(gil);
	return r;
}

static int on_value(const char *name, uint64_t value, void *data)
{
	struct collection *collection = data;
	PyGILState_STATE gil = PyGILState_Ensure();
	PyObject *number = PyLong_FromUnsignedLongLong(value);
	int r = number ? PyDict_SetItemString(collection->objects, name, number)
		       : -1;

	Py_XDECREF(number);
	PyGILState_Release(gil);
	return r < 0 ? STOP : 0;
}

/* The collection, or NULL with an exception: that of a callback stays. */
static PyObject *result(struct collection *collection, int r)
{
	if (r >= 0)
		return collection->objects;
	Py_DECREF(collection->objects);
	return r == STOP && PyErr_Occurred() ? NULL : errors_raise(r);
}

PyObject *inspect_list(PyObject *self, PyObject *args)
{
	struct collection collection;
	const char *prefix;
	struct link *link;
	struct call call;
	int r;

	if (!PyArg_ParseTuple(args, "z", &prefix))
		return NULL;
	collection.objects = PyList_New(0);
	link = collection.objects ? client_use(self) : NULL;
	if (!link || call_begin(&call) < 0) {
		Py_XDECREF(collection.objects);
		if (link)
			link_drop(link);
		return NULL;
	}
	r = fsdp_list(link->client, prefix, on_entry, &collection);
	call_end(&call);
	link_drop(link);
	return result(&collection, r);
}

PyObject *inspect_who(PyObject *self, PyObject *args)
{
	struct collection collection;
	const char *name;
	struct link *link;
	struct call call;
	int r;

	if (!PyArg_ParseTuple(args, "s", &name))
		return NULL;
	collection.objects = PyList_New(0);
	link = collection.objects ? client_use(self) : NULL;
	if (!link || call_begin(&call) < 0) {
		Py_XDECREF(collection.objects);
		if (link)
			link_drop(link);
		return NULL;
	}
	r = fsdp_who(link->client, name, on_holder, &collection);
	call_end(&call);
	link_drop(link);
	return result(&collection, r);
}

PyObject *inspect_status(PyObject *self, PyObject *none)
{
	struct collection collection = {.objects = PyDict_New()};
	struct link *link = collection.objects ? client_use(self) : NULL;
	PyObject *counters;
	struct call call;
	char *note;
	int r;

	(void)none;
	if (!link || call_begin(&call) < 0) {
		Py_XDECREF(collection.objects);
		if (link)
			link_drop(link);
		return NULL;
	}
	r = fsdp_status(link->client, on_value, &collection, &note);
	call_end(&call);
	link_drop(link);
	counters = result(&collection, r);
	if (!counters)
		return NULL;
	counters = Py_BuildValue("(Ns)", counters, note);
	free(note);
	return counters;
}
