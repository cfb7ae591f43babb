#include "pending.h"
#include "bundle.h"
#include "call.h"
#include "client.h"
#include "errors.h"
#include "names.h"
#include "tensor.h"
#include "type.h"
#include <errno.h>
#include <stdlib.h>

static PyTypeObject *pending_type;

struct pending {
	PyObject_HEAD struct link *link;
	struct fsdp_pending *get; /* NULL if it has ended */
	size_t n;
	PyObject *bundle; /* name of the bundle; NULL for a get of `n` names */
};

static PyObject *pending_new(struct link *link, struct fsdp_pending *get,
			     size_t n, PyObject *bundle)
{
	struct pending *pending = PyObject_New(struct pending, pending_type);

	if (!pending) {
		fsdp_get_cancel(get);
		return NULL;
	}
	pending->link = link_use(link);
	pending->get = get;
	pending->n = n;
	pending->bundle = Py_XNewRef(bundle);
	return (PyObject *)pending;
}

PyObject *pending_begin(PyObject *client, PyObject *iterable,
			const struct fsdp_get_options *options)
{
	struct link *link = client_use(client);
	PyObject *pending = NULL;
	struct fsdp_pending *get;
	struct names names;
	struct call call;
	int r;

	if (!link)
		return NULL;
	if (names_open(&names, iterable) == 0) {
		if (call_begin(&call) == 0) {
			r = fsdp_get_begin(link->client, names.items, names.n,
					   options, &get);
			call_end(&call);
			pending = r < 0 ? errors_raise(r)
					: pending_new(link, get, names.n, NULL);
		}
		names_close(&names);
	}
	link_drop(link);
	return pending;
}

PyObject *pending_begin_bundle(PyObject *client, PyObject *name,
			       const struct fsdp_get_options *options)
{
	const char *text = name_of(name);
	PyObject *pending = NULL;
	struct fsdp_pending *get;
	struct link *link;
	struct call call;
	int r;

	link = text ? client_enter(client, &call) : NULL;
	if (!link)
		return NULL;
	r = fsdp_bundle_get_begin(link->client, text, options, &get);
	call_end(&call);
	pending = r < 0 ? errors_raise(r) : pending_new(link, get, 0, name);
	link_drop(link);
	return pending;
}

/* The result, before it becomes objects of Python. */
struct got {
	struct fsdp_tensor **tensors; /* owned */
	size_t n;
};

/* Returns 0, or -EAGAIN if the get is not complete. For other failures an
 * exception is set. */
static int end_get(struct pending *pending, struct got *got)
{
	struct fsdp_pending *get = pending->get;
	struct call call;
	int r;

	pending->get = NULL; /* so that other threads do not use it */
	if (call_begin(&call) < 0) {
		pending->get = get;
		return -EBUSY;
	}
	r = pending->bundle ? fsdp_bundle_get_end(get, &got->tensors, &got->n)
			    : fsdp_get_end(get, got->tensors);
	call_end(&call);
	if (r == -EAGAIN)
		pending->get = get;
	else if (r < 0)
		errors_raise(r);
	return r;
}

static PyObject *end_names(struct pending *pending)
{
	struct got got = {.n = pending->n};
	PyObject *list = NULL;
	int r;

	got.tensors = calloc(got.n + 1, sizeof(*got.tensors));
	if (!got.tensors)
		return PyErr_NoMemory();
	r = end_get(pending, &got);
	if (r == 0)
		list = tensor_list(pending->link, got.tensors, got.n);
	else if (r == -EAGAIN)
		list = Py_NewRef(Py_None);
	free(got.tensors);
	return list;
}

static PyObject *end_bundle(struct pending *pending)
{
	struct got got;
	int r = end_get(pending, &got);

	if (r == -EAGAIN)
		Py_RETURN_NONE;
	return r < 0 ? NULL
		     : bundle_members(pending->link, pending->bundle,
				      got.tensors, got.n);
}

static PyObject *pending_end(PyObject *self, PyObject *none)
{
	struct pending *pending = (struct pending *)self;

	(void)none;
	if (!pending->get)
		return errors_raise_text(-EINVAL, "the get has ended");
	return pending->bundle ? end_bundle(pending) : end_names(pending);
}

static PyObject *pending_cancel(PyObject *self, PyObject *none)
{
	struct pending *pending = (struct pending *)self;

	(void)none;
	fsdp_get_cancel(pending->get);
	pending->get = NULL;
	Py_RETURN_NONE;
}

static void pending_dealloc(PyObject *self)
{
	struct pending *pending = (struct pending *)self;
	PyTypeObject *type = Py_TYPE(self);

	fsdp_get_cancel(pending->get);
	link_drop(pending->link);
	Py_XDECREF(pending->bundle);
	PyObject_Free(self);
	Py_DECREF(type);
}

static PyMethodDef methods[] = {
	{"end", pending_end, METH_NOARGS,
	 "end()\n--\n\nReturn what was got, or None while it is incomplete."},
	{"cancel", pending_cancel, METH_NOARGS,
	 "cancel()\n--\n\nRelease the tensors as soon as they have arrived."},
	{NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
	{Py_tp_dealloc, pending_dealloc},
	{Py_tp_methods, methods},
	{0, NULL},
};

int pending_add(PyObject *module)
{
	pending_type =
		type_add(module, "fsdp._fsdp.Pending", sizeof(struct pending),
			 Py_TPFLAGS_DISALLOW_INSTANTIATION, slots);
	return pending_type ? 0 : -1;
}
