#include "inspect.h"
#include "call.h"
#include "client.h"
#include "errors.h"
#include "spec.h"
#include <errno.h>
#include <stdlib.h>

/* libfsdp calls back while other Python threads run. Each callback takes the
 * interpreter's lock and adds an object for its entry to a list or dict. */

/* A callback returns this to stop libfsdp, after it has set an exception. */
#define STOP (-ECANCELED)

static int add(PyObject *list, PyObject *object)
{
	int r = object ? PyList_Append(list, object) : -1;

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
	int r = add(data,
		    Py_BuildValue(
			    "{s:I,s:I,s:s,s:L,s:N,s:N,s:N}", "pid", holder->pid,
			    "uid", holder->uid, "command", holder->command,
			    "holds", (long long)holder->holds, "connected",
			    PyBool_FromLong(holder->is_connected), "writer",
			    PyBool_FromLong(holder->is_writer), "ending",
			    PyBool_FromLong(holder->is_ending)));

	PyGILState_Release(gil);
	return r;
}

static int on_value(const char *name, uint64_t value, void *data)
{
	PyGILState_STATE gil = PyGILState_Ensure();
	PyObject *number = PyLong_FromUnsignedLongLong(value);
	int r = number ? PyDict_SetItemString(data, name, number) : -1;

	Py_XDECREF(number);
	PyGILState_Release(gil);
	return r < 0 ? STOP : 0;
}

typedef int fetch_fn(struct fsdp_client *client, void *what, PyObject *objects);

/* Fetches into the new list or dict, and returns it. Returns NULL with an
 * exception set on failure. The exception of a callback is kept. */
static PyObject *collect(PyObject *self, PyObject *objects, fetch_fn *fetch,
			 void *what)
{
	struct call call;
	struct link *link = objects ? client_enter(self, &call) : NULL;
	int r;

	if (!link) {
		Py_XDECREF(objects);
		return NULL;
	}
	r = fetch(link->client, what, objects);
	call_end(&call);
	link_drop(link);
	if (r >= 0)
		return objects;
	Py_DECREF(objects);
	return r == STOP && PyErr_Occurred() ? NULL : errors_raise(r);
}

static int fetch_list(struct fsdp_client *client, void *prefix, PyObject *list)
{
	return fsdp_list(client, prefix, on_entry, list);
}

PyObject *inspect_list(PyObject *self, PyObject *args)
{
	char *prefix;

	if (!PyArg_ParseTuple(args, "z", &prefix))
		return NULL;
	return collect(self, PyList_New(0), fetch_list, prefix);
}

static int fetch_who(struct fsdp_client *client, void *name, PyObject *list)
{
	return fsdp_who(client, name, on_holder, list);
}

PyObject *inspect_who(PyObject *self, PyObject *args)
{
	char *name;

	if (!PyArg_ParseTuple(args, "s", &name))
		return NULL;
	return collect(self, PyList_New(0), fetch_who, name);
}

static int fetch_status(struct fsdp_client *client, void *ret_note,
			PyObject *dict)
{
	return fsdp_status(client, on_value, dict, ret_note);
}

PyObject *inspect_status(PyObject *self, PyObject *none)
{
	char *note;
	PyObject *counters = collect(self, PyDict_New(), fetch_status, &note);

	(void)none;
	if (!counters)
		return NULL;
	counters = Py_BuildValue("(Ns)", counters, note);
	free(note);
	return counters;
}
