#include "channel.h"
#include "call.h"
#include "client.h"
#include "errors.h"
#include "link.h"
#include "options.h"
#include "type.h"
#include <errno.h>
#include <stdlib.h>

static PyTypeObject *port_type, *item_type;

struct item;

/* A channel with a count of users: the Port, each of its items, and each call
 * under way. The last user closes the channel. */
struct stream {
	struct fsdp_channel *channel;
	struct link *link;
	_Atomic uint32_t n_users;
	/* Items that were received and neither released nor kept. The
	 * interpreter's lock protects the list. */
	struct item *received;
	uint32_t n_received;
};

struct port {
	PyObject_HEAD struct stream *stream; /* NULL if closed */
};

struct item {
	PyObject_HEAD struct stream *stream; /* NULL if kept */
	struct fsdp_item *item; /* NULL if sent, cancelled, released or kept */
	struct fsdp_tensor *kept;
	struct link *link;        /* connection of the kept tensor */
	struct item *next, *prev; /* neighbours in stream->received */
	bool is_received;
	bool is_busy; /* a thread is keeping it */
	void *data;
	Py_ssize_t size;
	bool is_writable;
	Py_ssize_t n_exports; /* buffers that Python has of this item */
};

/* --- streams -------------------------------------------------------------- */

static struct stream *stream_use(struct stream *stream)
{
	/* Relaxed: the caller has a use of its own. */
	atomic_fetch_add_explicit(&stream->n_users, 1, memory_order_relaxed);
	return stream;
}

/* Consumes the caller's use of the link, also on failure. */
static struct stream *stream_open(struct link *link, const char *name,
				  const struct fsdp_channel_options *options,
				  enum fsdp_channel_role role)
{
	struct stream *stream = malloc(sizeof(*stream));
	struct call call;
	int r = -1;

	if (!stream) {
		link_drop(link);
		return (void *)PyErr_NoMemory();
	}
	stream->link = link;
	stream->received = NULL;
	stream->n_received = 0;
	atomic_init(&stream->n_users, 1);
	if (call_begin(&call) == 0) {
		r = fsdp_channel_open(link->client, name, options, role,
				      &stream->channel);
		call_end(&call);
		if (r < 0)
			errors_raise(r);
	}
	if (r == 0)
		return stream;
	free(stream);
	link_drop(link);
	return NULL;
}

static int close_channel(void *channel)
{
	return fsdp_channel_close(channel);
}

static void stream_drop(struct stream *stream)
{
	/* Acquire and release: the last user sees the writes of all others. */
	if (atomic_fetch_sub_explicit(&stream->n_users, 1,
				      memory_order_acq_rel) > 1 ||
	    link_is_left_open())
		return;
	(void)link_end(stream->link, close_channel, stream->channel);
	link_drop(stream->link);
	free(stream);
}

/* --- items ---------------------------------------------------------------- */

static void list_item(struct item *item)
{
	struct stream *stream = item->stream;

	item->prev = NULL;
	item->next = stream->received;
	if (item->next)
		item->next->prev = item;
	stream->received = item;
	stream->n_received++;
}

static void unlist_item(struct item *item)
{
	struct stream *stream = item->stream;

	if (item->next)
		item->next->prev = item->prev;
	if (item->prev)
		item->prev->next = item->next;
	else
		stream->received = item->next;
	stream->n_received--;
}

/* Consumes the caller's use of the stream, and `held`. */
static struct item *item_new(struct stream *stream, struct fsdp_item *held,
			     bool is_received)
{
	struct item *item = PyObject_New(struct item, item_type);

	if (!item) {
		if (is_received)
			(void)fsdp_item_release(held);
		else
			fsdp_item_cancel(held);
		stream_drop(stream);
		return NULL;
	}
	item->stream = stream;
	item->item = held;
	item->kept = NULL;
	item->link = NULL;
	item->is_received = is_received;
	item->is_busy = false;
	item->data = NULL;
	item->size = 0;
	item->is_writable = false;
	item->n_exports = 0;
	if (is_received)
		list_item(item);
	return item;
}

static void item_end(struct item *item)
{
	struct fsdp_item *held = item->item;

	item->item = NULL;
	if (held && item->is_received)
		unlist_item(item);
	if (!held || link_is_left_open())
		return;
	if (item->is_received)
		(void)fsdp_item_release(held);
	else
		fsdp_item_cancel(held);
}

static void item_drop_kept(struct item *item)
{
	if (!item->kept || link_is_left_open())
		return;
	fsdp_free(item->kept);
	link_drop(item->link);
}

static void item_dealloc(PyObject *self)
{
	struct item *item = (struct item *)self;
	PyTypeObject *type = Py_TYPE(self);

	item_end(item);
	item_drop_kept(item);
	if (item->stream)
		stream_drop(item->stream);
	PyObject_Free(self);
	Py_DECREF(type);
}

/* Makes the item an ordinary tensor. The item still shows its memory, which
 * stays writable, since no other process has that tensor. The caller has a
 * reference to the item. Like stream_drop(), this cannot be interrupted and
 * sets no exception. */
static int item_keep(struct item *item)
{
	struct stream *stream = item->stream;
	struct fsdp_tensor *kept = NULL;
	int r;

	if (item->is_busy || call_is_in_handler())
		return -EBUSY;
	item->is_busy = true;
	Py_BEGIN_ALLOW_THREADS r = fsdp_item_keep(item->item, 0, &kept);
	Py_END_ALLOW_THREADS item->is_busy = false;
	if (r < 0)
		return r;
	item_end(item);
	item->kept = kept;
	item->link = link_use(stream->link);
	item->stream = NULL;
	stream_drop(stream);
	return 0;
}

/* Checks that the buffer can be given away. Returns 0, or -1 with an exception
 * set. */
static int item_check_idle(const struct item *item)
{
	if (!item->item) {
		errors_raise_text(-EINVAL, "the item was sent or released");
		return -1;
	}
	if (item->n_exports || item->is_busy) {
		PyErr_Format(PyExc_BufferError,
			     "the item is still used by %zd views; release "
			     "them first",
			     item->n_exports);
		return -1;
	}
	return 0;
}

static PyObject *item_send(PyObject *self, PyObject *none)
{
	struct item *item = (struct item *)self;
	int r;

	(void)none;
	if (item_check_idle(item) < 0)
		return NULL;
	r = fsdp_item_send(item->item);
	if (r < 0)
		return errors_raise(r);
	item->item = NULL;
	Py_RETURN_NONE;
}

static PyObject *item_release(PyObject *self, PyObject *none)
{
	struct item *item = (struct item *)self;

	(void)none;
	if (item->item && item_check_idle(item) < 0)
		return NULL;
	item_end(item);
	Py_RETURN_NONE;
}

/* Implements keep(): the buffer leaves the channel, which gets another one. */
static PyObject *item_keep_it(PyObject *self, PyObject *none)
{
	struct item *item = (struct item *)self;
	int r;

	(void)none;
	if (call_check() < 0)
		return NULL;
	if (!item->is_received || !item->item)
		return errors_raise_text(-EINVAL, "the item is not held; "
						  "receive it first");
	r = item_keep(item);
	if (r < 0)
		return errors_raise(r);
	Py_RETURN_NONE;
}

static PyObject *item_address(PyObject *self, void *data)
{
	struct item *item = (struct item *)self;

	(void)data;
	return PyLong_FromVoidPtr(item->item || item->kept ? item->data : NULL);
}

static int item_get_buffer(PyObject *self, Py_buffer *view, int flags)
{
	struct item *item = (struct item *)self;

	view->obj = NULL;
	if (!item->item && !item->kept) {
		PyErr_SetString(PyExc_BufferError,
				"the item was sent or released");
		return -1;
	}
	if (PyBuffer_FillInfo(view, self, item->data, item->size,
			      !item->is_writable, flags) < 0)
		return -1;
	item->n_exports++;
	return 0;
}

static void item_release_buffer(PyObject *self, Py_buffer *view)
{
	(void)view;
	((struct item *)self)->n_exports--;
}

/* --- ports ---------------------------------------------------------------- */

PyObject *channel_open(PyObject *self, PyObject *args)
{
	struct fsdp_channel_options options = {.struct_size = sizeof(options),
					       .changes_items = true,
					       .known_only = true};
	unsigned long long capacity;
	struct stream *stream;
	struct link *link;
	struct port *port;
	const char *name;
	int role;

	if (!PyArg_ParseTuple(args, "siKIIIiI", &name, &role, &capacity,
			      &options.n_slots, &options.mode,
			      &options.access.mode, &options.timeout_ms,
			      &options.lag_ms))
		return NULL;
	options.capacity = capacity;
	options.access.gid = FSDP_GID_DEFAULT;
	link = client_use(self);
	if (!link)
		return NULL;
	stream =
		stream_open(link, name, &options, (enum fsdp_channel_role)role);
	if (!stream)
		return NULL;
	port = PyObject_New(struct port, port_type);
	if (port)
		port->stream = stream;
	else
		stream_drop(stream);
	return (PyObject *)port;
}

static struct stream *port_use(PyObject *self)
{
	struct stream *stream = ((struct port *)self)->stream;

	if (stream)
		return stream_use(stream);
	return errors_raise_text(-EINVAL, "the channel is closed; "
					  "Client.channel() opens it again");
}

typedef int take_fn(struct fsdp_channel *channel, int32_t timeout_ms,
		    struct fsdp_item **ret);

/* Begins or receives an item. A call that need not wait, not even for the
 * broker, keeps the interpreter's lock, because getting it back may take
 * milliseconds. */
static int take(take_fn *fn, struct fsdp_channel *channel, int32_t timeout_ms,
		struct fsdp_item **ret)
{
	struct call call;
	int r = call_check() < 0 ? -EBUSY : fn(channel, 0, ret);
	bool waits = r == -EAGAIN || (r == -ETIMEDOUT && timeout_ms != 0);

	if (!waits || call_begin(&call) < 0)
		return r;
	r = fn(channel, timeout_ms == 0 ? 1 : timeout_ms, ret);
	call_end(&call);
	return r;
}

/* Raises the error, unless the call has set an exception of its own. */
static void raise_once(int r)
{
	if (!PyErr_Occurred())
		errors_raise(r);
}

/* Implements begin(size, timeout). Returns an Item of `size` bytes to write and
 * then to send. */
static PyObject *port_begin(PyObject *self, PyObject *args)
{
	struct fsdp_spec spec = {.dtype = FSDP_U8, .n_dims = 1};
	struct fsdp_item *held;
	struct stream *stream;
	struct item *item;
	int32_t timeout_ms;
	Py_ssize_t size;
	PyObject *time;
	int r;

	if (!PyArg_ParseTuple(args, "nO", &size, &time) ||
	    options_parse_time(time, &timeout_ms) < 0)
		return NULL;
	stream = port_use(self);
	if (!stream)
		return NULL;
	r = take(fsdp_item_begin, stream->channel, timeout_ms, &held);
	if (r < 0) {
		raise_once(r);
		stream_drop(stream);
		return NULL;
	}
	item = item_new(stream, held, false);
	if (!item)
		return NULL;
	spec.shape[0] = size;
	r = fsdp_item_part(held, &spec, &item->data);
	if (r < 0) {
		errors_raise(r);
		Py_DECREF(item);
		return NULL;
	}
	item->size = size;
	item->is_writable = true;
	return (PyObject *)item;
}

/* Finds the memory of the item. Another program can have sent an item with
 * several arrays, which this package does not support. */
static int show(struct item *item)
{
	struct fsdp_item_view view = {.struct_size = sizeof(view)};
	int r;

	if (fsdp_item_n_parts(item->item) != 1) {
		errors_raise_text(-EINVAL,
				  "the item has %u arrays; this end takes one, "
				  "as Channel.put() sends it",
				  fsdp_item_n_parts(item->item));
		return -1;
	}
	r = fsdp_item_view(item->item, 0, &view);
	if (r < 0) {
		errors_raise(r);
		return -1;
	}
	item->data =
		view.data_mut ? view.data_mut : (void *)(uintptr_t)view.data;
	item->is_writable = view.data_mut != NULL;
	item->size = (Py_ssize_t)view.size;
	return 0;
}

/* Implements receive(timeout). Returns the oldest Item. */
static PyObject *port_receive(PyObject *self, PyObject *time)
{
	struct fsdp_item *held;
	struct stream *stream;
	struct item *item;
	int32_t timeout_ms;
	int r;

	if (options_parse_time(time, &timeout_ms) < 0)
		return NULL;
	stream = port_use(self);
	if (!stream)
		return NULL;
	r = take(fsdp_item_receive, stream->channel, timeout_ms, &held);
	if (r < 0) {
		raise_once(r);
		stream_drop(stream);
		return NULL;
	}
	item = item_new(stream, held, true);
	if (item && show(item) < 0)
		Py_CLEAR(item);
	return (PyObject *)item;
}

static PyObject *port_end(PyObject *self, PyObject *none)
{
	struct stream *stream = port_use(self);
	struct call call;
	int r = -1;

	(void)none;
	if (!stream)
		return NULL;
	if (call_begin(&call) == 0) {
		r = fsdp_channel_end(stream->channel);
		call_end(&call);
		if (r < 0)
			errors_raise(r);
	}
	stream_drop(stream);
	return r < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *port_resize(PyObject *self, PyObject *args)
{
	struct stream *stream;
	struct call call;
	PyObject *timeout;
	int32_t timeout_ms;
	unsigned int n;
	int r = -1;

	if (!PyArg_ParseTuple(args, "IO", &n, &timeout) ||
	    options_parse_time(timeout, &timeout_ms) < 0)
		return NULL;
	stream = port_use(self);
	if (!stream)
		return NULL;
	if (call_begin(&call) == 0) {
		r = fsdp_channel_resize(stream->channel, n, timeout_ms);
		call_end(&call);
		if (r < 0)
			errors_raise(r);
	}
	stream_drop(stream);
	return r < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *port_fileno(PyObject *self, PyObject *none)
{
	struct stream *stream = port_use(self);
	int fd;

	(void)none;
	if (!stream)
		return NULL;
	fd = fsdp_channel_fd(stream->channel);
	stream_drop(stream);
	return fd < 0 ? errors_raise(fd) : PyLong_FromLong(fd);
}

static PyObject *port_info(PyObject *self, PyObject *none)
{
	struct fsdp_channel_info info = {.struct_size = sizeof(info)};
	struct stream *stream = port_use(self);
	int r;

	(void)none;
	if (!stream)
		return NULL;
	r = fsdp_channel_info(stream->channel, &info);
	stream_drop(stream);
	if (r < 0)
		return errors_raise(r);
	return Py_BuildValue("{s:K,s:I,s:s,s:I,s:I,s:I}", "capacity",
			     (unsigned long long)info.capacity, "credits",
			     info.n_slots, "mode",
			     info.mode == FSDP_CHANNEL_BROADCAST ? "broadcast"
								 : "queue",
			     "queued", info.n_queued, "producers",
			     info.n_producers, "consumers", info.n_consumers);
}

/* Makes ordinary tensors of the items that are still used, so that they do not
 * keep the whole channel. Items that cannot be kept do keep it: those of a
 * broadcast, and all items if there is no broker or this is a signal
 * handler. */
static void keep_received(struct stream *stream)
{
	struct item *item = stream->received;
	int r = 0;

	while (item && r == 0) {
		Py_INCREF((PyObject *)item);
		r = item_keep(item);
		Py_DECREF((PyObject *)item);
		item = stream->received;
	}
}

static PyObject *port_close(PyObject *self, PyObject *none)
{
	struct port *port = (struct port *)self;
	struct stream *stream = port->stream;

	(void)none;
	port->stream = NULL;
	if (!stream)
		Py_RETURN_NONE;
	if (stream->received && !link_is_left_open())
		keep_received(stream);
	stream_drop(stream);
	Py_RETURN_NONE;
}

static PyObject *port_held(PyObject *self, void *data)
{
	const struct stream *stream = ((struct port *)self)->stream;

	(void)data;
	return PyLong_FromUnsignedLong(stream ? stream->n_received : 0);
}

/* Do slabs, or calls of other threads, keep the channel beside this port? */
static PyObject *port_shared(PyObject *self, void *data)
{
	const struct stream *stream = ((struct port *)self)->stream;

	(void)data;
	return PyBool_FromLong(stream && atomic_load(&stream->n_users) > 1);
}

static PyObject *port_closed(PyObject *self, void *data)
{
	(void)data;
	return PyBool_FromLong(!((struct port *)self)->stream);
}

static void port_dealloc(PyObject *self)
{
	PyTypeObject *type = Py_TYPE(self);

	Py_XDECREF(port_close(self, NULL));
	PyObject_Free(self);
	Py_DECREF(type);
}

/* --- types ---------------------------------------------------------------- */

static PyMethodDef item_methods[] = {
	{"send", item_send, METH_NOARGS, NULL},
	{"release", item_release, METH_NOARGS, NULL},
	{"keep", item_keep_it, METH_NOARGS, NULL},
	{NULL, NULL, 0, NULL},
};

static PyGetSetDef item_getters[] = {
	{"address", item_address, NULL, NULL, NULL},
	{NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot item_slots[] = {
	{Py_tp_dealloc, item_dealloc},
	{Py_tp_methods, item_methods},
	{Py_tp_getset, item_getters},
	{Py_bf_getbuffer, item_get_buffer},
	{Py_bf_releasebuffer, item_release_buffer},
	{0, NULL},
};

static PyMethodDef port_methods[] = {
	{"begin", port_begin, METH_VARARGS, NULL},
	{"receive", port_receive, METH_O, NULL},
	{"fileno", port_fileno, METH_NOARGS, NULL},
	{"end", port_end, METH_NOARGS, NULL},
	{"info", port_info, METH_NOARGS, NULL},
	{"resize", port_resize, METH_VARARGS, NULL},
	{"close", port_close, METH_NOARGS, NULL},
	{NULL, NULL, 0, NULL},
};

static PyGetSetDef port_getters[] = {
	{"closed", port_closed, NULL, NULL, NULL},
	{"held", port_held, NULL, NULL, NULL},
	{"shared", port_shared, NULL, NULL, NULL},
	{NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot port_slots[] = {
	{Py_tp_dealloc, port_dealloc},
	{Py_tp_methods, port_methods},
	{Py_tp_getset, port_getters},
	{0, NULL},
};

int channel_add(PyObject *module)
{
	item_type = type_add(module, "fsdp._fsdp.Item", sizeof(struct item),
			     Py_TPFLAGS_DISALLOW_INSTANTIATION, item_slots);
	if (!item_type)
		return -1;
	port_type = type_add(module, "fsdp._fsdp.Port", sizeof(struct port),
			     Py_TPFLAGS_DISALLOW_INSTANTIATION, port_slots);
	return port_type ? 0 : -1;
}
