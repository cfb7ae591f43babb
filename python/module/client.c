#include "client.h"
#include "bundle.h"
#include "call.h"
#include "channel.h"
#include "comm.h"
#include "errors.h"
#include "inspect.h"
#include "names.h"
#include "options.h"
#include "pending.h"
#include "spec.h"
#include "tensor.h"
#include "type.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct client {
	PyObject_HEAD struct link *link; /* NULL if closed */
};

static struct link *link_of(PyObject *self)
{
	struct link *link = ((struct client *)self)->link;

	if (!link)
		errors_raise_text(-EINVAL, "the connection is closed; "
					   "fsdp.connect() makes another one");
	return link;
}

struct link *client_use(PyObject *self)
{
	struct link *link = link_of(self);

	return link ? link_use(link) : NULL;
}

struct link *client_enter(PyObject *self, struct call *call)
{
	struct link *link = client_use(self);

	if (!link || call_begin(call) == 0)
		return link;
	link_drop(link);
	return NULL;
}

static int client_init(PyObject *self, PyObject *args, PyObject *kwargs)
{
	struct client *client = (struct client *)self;
	unsigned long long budget;
	int32_t reconnect_ms;
	struct link *link;
	struct call call;
	const char *path;
	PyObject *time;
	int r;

	(void)kwargs;
	if (!PyArg_ParseTuple(args, "zKO", &path, &budget, &time) ||
	    options_parse_time(time, &reconnect_ms) < 0)
		return -1;
	/* None means without limit. 0 would mean libfsdp's default, so it
	 * becomes 1. */
	if (reconnect_ms <= 0)
		reconnect_ms = reconnect_ms < 0 ? INT32_MAX : 1;
	if (call_begin(&call) < 0)
		return -1;
	r = link_open(path, budget, reconnect_ms, &link);
	call_end(&call);
	if (r < 0) {
		/* A missing socket means that no broker runs, so the error is
		 * the same. */
		errors_raise(r == -ENOENT ? -ECONNREFUSED : r);
		return -1;
	}
	if (client->link)
		link_drop(client->link);
	client->link = link;
	return 0;
}

/* This waits for the broker, so it lets other threads run. */
static void client_end(struct client *client)
{
	struct link *link = client->link;
	struct call call;

	client->link = NULL;
	if (!link)
		return;
	call_begin_end(&call);
	link_close(link);
	call_end_end(&call);
}

static PyObject *client_close(PyObject *self, PyObject *none)
{
	(void)none;
	client_end((struct client *)self);
	Py_RETURN_NONE;
}

static void client_dealloc(PyObject *self)
{
	PyTypeObject *type = Py_TYPE(self);
	freefunc free_self = PyType_GetSlot(type, Py_tp_free);

	client_end((struct client *)self);
	free_self(self);
	Py_DECREF(type);
}

/* --- get ------------------------------------------------------------------ */

static int get_waiting(struct link *link, const char *const *names, size_t n,
		       const struct fsdp_get_options *options,
		       struct fsdp_tensor **ret)
{
	struct call call;
	int r;

	if (call_begin(&call) < 0)
		return -1;
	r = fsdp_get(link->client, names, n, options, ret);
	call_end(&call);
	if (r < 0)
		errors_raise(r);
	return r < 0 ? -1 : 0;
}

/* Tensors that this process knows cost no system call, so the first attempt
 * keeps the interpreter's lock. */
static int get(struct link *link, const char *const *names, size_t n,
	       struct fsdp_get_options *options, struct fsdp_tensor **ret)
{
	options->known_only = true;
	if (fsdp_get(link->client, names, n, options, ret) == 0)
		return 0;
	options->known_only = false;
	return get_waiting(link, names, n, options, ret);
}

static PyObject *get_one(PyObject *self, PyObject *name,
			 struct fsdp_get_options *options)
{
	/* Another thread may close the Client meanwhile. */
	struct link *link = client_use(self);
	struct fsdp_tensor *held;
	PyObject *tensor = NULL;
	const char *text;

	if (!link)
		return NULL;
	text = name_of(name);
	if (text && get(link, &text, 1, options, &held) == 0)
		tensor = tensor_new(link, held);
	link_drop(link);
	return tensor;
}

static PyObject *get_many(PyObject *self, PyObject *iterable,
			  struct fsdp_get_options *options)
{
	struct link *link = client_use(self);
	struct fsdp_tensor **tensors;
	PyObject *list = NULL;
	struct names names;

	if (!link)
		return NULL;
	if (names_open(&names, iterable) < 0) {
		link_drop(link);
		return NULL;
	}
	tensors = calloc(names.n + 1, sizeof(*tensors));
	if (!tensors)
		PyErr_NoMemory();
	else if (get(link, names.items, names.n, options, tensors) == 0)
		list = tensor_list(link, tensors, names.n);
	free(tensors);
	names_close(&names);
	link_drop(link);
	return list;
}

static PyObject *client_get(PyObject *self, PyObject *const *args,
			    Py_ssize_t n_args, PyObject *keywords)
{
	struct fsdp_get_options options;

	if (options_parse(OPTIONS_GET, args, n_args, keywords, &options) < 0)
		return NULL;
	return PyUnicode_Check(args[0]) ? get_one(self, args[0], &options)
					: get_many(self, args[0], &options);
}

static PyObject *client_item(PyObject *self, PyObject *name)
{
	struct fsdp_get_options options = {.struct_size = sizeof(options)};

	return get_one(self, name, &options);
}

/* Returns 0 if the name is there, which may be that of a bundle. */
static int look_for(struct fsdp_client *client, const char *name)
{
	struct fsdp_get_options options = {.struct_size = sizeof(options),
					   .accepts_tainted = true};
	size_t size = strlen(name), n = 1;
	struct fsdp_tensor *tensor, **members = NULL;
	int r;

	if (size && name[size - 1] == '/')
		r = fsdp_bundle_get(client, name, &options, &members, &n);
	else
		r = fsdp_get(client, &name, 1, &options, &tensor);
	for (size_t i = 0; r == 0 && i < n; i++)
		fsdp_free(members ? members[i] : tensor);
	free(members);
	return r;
}

/* Only -ENOENT means "not in". Other errors raise an exception. */
static int client_contains(PyObject *self, PyObject *name)
{
	const char *text = name_of(name);
	struct link *link;
	struct call call;
	int r;

	link = text ? client_enter(self, &call) : NULL;
	if (!link)
		return -1;
	r = look_for(link->client, text);
	call_end(&call);
	if (r < 0 && r != -ENOENT)
		errors_raise(r);
	link_drop(link);
	return r == 0 ? 1 : r == -ENOENT ? 0 : -1;
}

static PyObject *client_begin(PyObject *self, PyObject *const *args,
			      Py_ssize_t n_args, PyObject *keywords)
{
	struct fsdp_get_options options;

	if (options_parse(OPTIONS_AGET, args, n_args, keywords, &options) < 0)
		return NULL;
	return pending_begin(self, args[0], &options);
}

static PyObject *client_begin_bundle(PyObject *self, PyObject *const *args,
				     Py_ssize_t n_args, PyObject *keywords)
{
	struct fsdp_get_options options;

	if (options_parse(OPTIONS_ABUNDLE, args, n_args, keywords, &options) <
	    0)
		return NULL;
	return pending_begin_bundle(self, args[0], &options);
}

/* --- alloc ---------------------------------------------------------------- */

struct allocation {
	const struct fsdp_spec *specs;
	size_t n;
	struct fsdp_device device;
	struct fsdp_access access;
	int32_t timeout_ms;
};

static PyObject *allocate(struct link *link, const struct allocation *it)
{
	struct fsdp_tensor **tensors = calloc(it->n + 1, sizeof(*tensors));
	PyObject *list = NULL;
	struct call call;
	int r;

	if (!tensors)
		return PyErr_NoMemory();
	if (call_begin(&call) == 0) {
		r = fsdp_alloc_on(link->client, &it->device, it->specs, it->n,
				  &it->access, it->timeout_ms, tensors);
		call_end(&call);
		list = r < 0 ? errors_raise(r)
			     : tensor_list(link, tensors, it->n);
	}
	free(tensors);
	return list;
}

/* Implements _alloc([(shape, dtype)], device, mode, gid, timeout). */
static PyObject *client_alloc(PyObject *self, PyObject *args)
{
	struct allocation it = {.n = 0};
	PyObject *list, *timeout, *tensors;
	const char *device;
	struct link *link;
	int r = 0;

	if (!PyArg_ParseTuple(args, "O!zIIO", &PyList_Type, &list, &device,
			      &it.access.mode, &it.access.gid, &timeout) ||
	    options_parse_time(timeout, &it.timeout_ms) < 0)
		return NULL;
	if (device)
		r = fsdp_device_parse(device, &it.device);
	if (r < 0)
		return errors_raise(r);
	it.n = (size_t)PyList_Size(list);
	it.specs = spec_parse_list(list);
	if (!it.specs)
		return NULL;
	link = client_use(self);
	tensors = link ? allocate(link, &it) : NULL;
	if (link)
		link_drop(link);
	free((void *)(uintptr_t)it.specs);
	return tensors;
}

/* --- the rest ------------------------------------------------------------- */

static PyObject *client_remove(PyObject *self, PyObject *iterable)
{
	struct link *link = client_use(self);
	struct names names;
	struct call call;
	int r = -1;

	if (!link)
		return NULL;
	if (names_open(&names, iterable) == 0) {
		if (call_begin(&call) == 0) {
			r = fsdp_remove(link->client, names.items, names.n);
			call_end(&call);
			if (r < 0)
				errors_raise(r);
		}
		names_close(&names);
	}
	link_drop(link);
	if (r < 0)
		return NULL;
	Py_RETURN_NONE;
}

static PyObject *client_redeem(PyObject *self, PyObject *args)
{
	struct fsdp_tensor *tensor;
	struct fsdp_ticket ticket;
	const char *bytes;
	struct link *link;
	struct call call;
	Py_ssize_t size;
	int is_writable;
	PyObject *ret;
	int r;

	if (!PyArg_ParseTuple(args, "y#p", &bytes, &size, &is_writable))
		return NULL;
	if (size != sizeof(ticket.bytes))
		return errors_raise_text(-EINVAL,
					 "a ticket has %zu bytes, not %zd",
					 sizeof(ticket.bytes), size);
	memcpy(ticket.bytes, bytes, sizeof(ticket.bytes));
	link = client_enter(self, &call);
	if (!link)
		return NULL;
	r = is_writable
		    ? fsdp_ticket_redeem_mut(link->client, &ticket, 1, &tensor)
		    : fsdp_ticket_redeem(link->client, &ticket, 1, &tensor);
	call_end(&call);
	ret = r < 0 ? errors_raise(r) : tensor_new(link, tensor);
	link_drop(link);
	return ret;
}

static PyObject *client_ping(PyObject *self, PyObject *none)
{
	struct call call;
	struct link *link = client_enter(self, &call);
	int r;

	(void)none;
	if (!link)
		return NULL;
	r = fsdp_ping(link->client);
	call_end(&call);
	if (r < 0)
		errors_raise(r);
	link_drop(link);
	if (r < 0)
		return NULL;
	Py_RETURN_NONE;
}

static PyObject *client_fd(PyObject *self, PyObject *none)
{
	struct link *link = link_of(self);
	int fd;

	(void)none;
	if (!link)
		return NULL;
	fd = fsdp_fd(link->client);
	return fd < 0 ? errors_raise(fd) : PyLong_FromLong(fd);
}

static PyObject *client_is_closed(PyObject *self, void *closure)
{
	(void)closure;
	return PyBool_FromLong(!((struct client *)self)->link);
}

static PyMethodDef methods[] = {
	{"get", METHOD(client_get), METH_FASTCALL | METH_KEYWORDS,
	 "get(name, *, timeout=0, stream=None, trusted_uid=None, newer_than=0, "
	 "tainted=False)\n--\n\n"
	 "Get and hold the tensor of a name, or a list of tensors of several\n"
	 "names, all of the same moment. One that this process knows costs no\n"
	 "system call. timeout is in seconds; None waits for ever. Raises\n"
	 "fsdp.NotFound, fsdp.Timeout, fsdp.Denied and others."},
	{"close", client_close, METH_NOARGS,
	 "close()\n--\n\n"
	 "End the use of this object. Tensors and arrays that were made by it\n"
	 "stay valid; the connection ends with the last of them."},
	{"ping", client_ping, METH_NOARGS,
	 "ping()\n--\n\nMake one round trip to the broker."},
	{"_alloc", client_alloc, METH_VARARGS, NULL},
	{"_begin", METHOD(client_begin), METH_FASTCALL | METH_KEYWORDS, NULL},
	{"_begin_bundle", METHOD(client_begin_bundle),
	 METH_FASTCALL | METH_KEYWORDS, NULL},
	{"_bundle", METHOD(bundle_get), METH_FASTCALL | METH_KEYWORDS, NULL},
	{"_fd", client_fd, METH_NOARGS, NULL},
	{"_join", comm_join, METH_VARARGS, NULL},
	{"_list", inspect_list, METH_VARARGS, NULL},
	{"_redeem", client_redeem, METH_VARARGS, NULL},
	{"_remove", client_remove, METH_O, NULL},
	{"_shows", bundle_shows, METH_O, NULL},
	{"_channel", channel_open, METH_VARARGS, NULL},
	{"_stage", bundle_stage, METH_VARARGS, NULL},
	{"_status", inspect_status, METH_NOARGS, NULL},
	{"_who", inspect_who, METH_VARARGS, NULL},
	{NULL, NULL, 0, NULL},
};

static PyGetSetDef attributes[] = {
	{"closed", client_is_closed, NULL, "True after close().", NULL},
	{NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
	{Py_tp_init, client_init},
	{Py_tp_dealloc, client_dealloc},
	{Py_tp_methods, methods},
	{Py_tp_getset, attributes},
	{Py_mp_subscript, client_item},
	{Py_sq_contains, client_contains},
	{0, NULL},
};

int client_add(PyObject *module)
{
	PyTypeObject *type =
		type_add(module, "fsdp._fsdp.Client", sizeof(struct client),
			 Py_TPFLAGS_BASETYPE, slots);

	return type ? 0 : -1;
}
