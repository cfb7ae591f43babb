#include "tensor.h"
#include "buffer.h"
#include "call.h"
#include "dlpack.h"
#include "errors.h"
#include "spec.h"
#include "type.h"
#include <errno.h>
#include <string.h>

PyTypeObject *tensor_type;

PyObject *tensor_wrap(struct handle *handle)
{
	struct tensor *tensor = PyObject_New(struct tensor, tensor_type);

	if (!tensor) {
		handle_unexport(handle);
		return NULL;
	}
	tensor->handle = handle;
	tensor->n_holds = 1;
	return (PyObject *)tensor;
}

PyObject *tensor_new(struct link *link, struct fsdp_tensor *held)
{
	struct handle *handle = handle_new(link, held);

	return handle ? tensor_wrap(handle) : PyErr_NoMemory();
}

PyObject *tensor_list(struct link *link, struct fsdp_tensor *const *held,
		      size_t n)
{
	PyObject *list = PyList_New((Py_ssize_t)n);

	for (size_t i = 0; i < n; i++) {
		PyObject *tensor = list ? tensor_new(link, held[i]) : NULL;

		if (!list)
			fsdp_free(held[i]);
		else if (!tensor ||
			 PyList_SetItem(list, (Py_ssize_t)i, tensor) < 0)
			Py_CLEAR(list);
	}
	return list ? list : PyErr_Occurred() ? NULL : PyErr_NoMemory();
}

struct tensor *tensor_of(PyObject *object)
{
	if (PyObject_TypeCheck(object, tensor_type))
		return (struct tensor *)object;
	PyErr_Format(PyExc_TypeError, "this must be an fsdp.Tensor, not %R",
		     (PyObject *)Py_TYPE(object));
	return NULL;
}

static void tensor_dealloc(PyObject *self)
{
	struct tensor *tensor = (struct tensor *)self;
	PyTypeObject *type = Py_TYPE(self);

	handle_drop_holds(tensor->handle, tensor->n_holds);
	PyObject_Free(self);
	Py_DECREF(type);
}

/* --- holds ---------------------------------------------------------------- */

static PyObject *tensor_hold(PyObject *self, PyObject *none)
{
	struct tensor *tensor = (struct tensor *)self;
	int r;

	(void)none;
	/* A held tensor can be held once more, even if its name shows another
	 * version by now. */
	r = tensor->n_holds ? fsdp_hold(tensor->handle->tensor)
			    : fsdp_acquire(tensor->handle->tensor);
	if (r < 0)
		return errors_raise(r);
	tensor->n_holds++;
	Py_RETURN_NONE;
}

static PyObject *tensor_release(PyObject *self, PyObject *none)
{
	struct tensor *tensor = (struct tensor *)self;
	int r;

	(void)none;
	/* Without this check, the hold of an export would be dropped. */
	if (tensor->n_holds == 0)
		return errors_raise_text(-EINVAL,
					 "the tensor is not held: each hold() "
					 "is released once");
	r = fsdp_release(tensor->handle->tensor);
	if (r < 0)
		return errors_raise(r);
	tensor->n_holds--;
	Py_RETURN_NONE;
}

static PyObject *tensor_release_on(PyObject *self, PyObject *stream)
{
	struct tensor *tensor = (struct tensor *)self;
	void *on = PyLong_AsVoidPtr(stream);
	int r;

	if (!on && PyErr_Occurred())
		return NULL;
	if (tensor->n_holds == 0)
		return tensor_release(self, NULL);
	r = fsdp_release_on(tensor->handle->tensor, on);
	if (r < 0)
		return errors_raise(r);
	tensor->n_holds--;
	Py_RETURN_NONE;
}

static PyObject *tensor_enter(PyObject *self, PyObject *none)
{
	(void)none;
	return Py_NewRef(self);
}

/* Unlike release(), this is allowed if the tensor was released within the
 * block. */
static PyObject *tensor_exit(PyObject *self, PyObject *args)
{
	struct tensor *tensor = (struct tensor *)self;

	(void)args;
	for (; tensor->n_holds; tensor->n_holds--)
		(void)fsdp_release(tensor->handle->tensor);
	Py_RETURN_NONE;
}

/* --- what the broker is asked for ----------------------------------------- */

static PyObject *tensor_publish(PyObject *self, PyObject *args)
{
	struct tensor *tensor = (struct tensor *)self;
	struct fsdp_publication publication = {
		.struct_size = sizeof(publication),
		.tensor = tensor->handle->tensor,
	};
	unsigned long long ttl_ms, stream;
	unsigned int flags;
	struct call call;
	int r;

	if (!PyArg_ParseTuple(args, "zIKK", &publication.name, &flags, &ttl_ms,
			      &stream))
		return NULL;
	publication.flags = flags;
	publication.ttl_ms = ttl_ms;
	publication.stream = (void *)(uintptr_t)stream;
	if (call_begin(&call) < 0)
		return NULL;
	r = fsdp_publish(tensor->handle->link->client, &publication, 1);
	call_end(&call);
	if (r < 0)
		return errors_raise(r);
	return PyLong_FromUnsignedLongLong(publication.version);
}

static PyObject *tensor_ticket(PyObject *self, PyObject *args)
{
	struct tensor *tensor = (struct tensor *)self;
	struct fsdp_ticket ticket;
	unsigned long long ttl_ms;
	unsigned int n_uses;
	struct call call;
	int r;

	if (!PyArg_ParseTuple(args, "IK", &n_uses, &ttl_ms))
		return NULL;
	if (call_begin(&call) < 0)
		return NULL;
	r = fsdp_ticket_make(tensor->handle->tensor, n_uses, ttl_ms, &ticket);
	call_end(&call);
	if (r < 0)
		return errors_raise(r);
	return PyBytes_FromStringAndSize((char *)ticket.bytes,
					 sizeof(ticket.bytes));
}

static PyObject *tensor_view(PyObject *self, PyObject *args)
{
	struct tensor *tensor = (struct tensor *)self;
	PyObject *shape, *dtype, *strides;
	int64_t counts[FSDP_MAX_DIMS];
	unsigned long long offset;
	struct fsdp_tensor *view;
	struct fsdp_spec spec;
	uint32_t n_strides;
	struct call call;
	int r;

	if (!PyArg_ParseTuple(args, "OUOK", &shape, &dtype, &strides,
			      &offset) ||
	    spec_parse(shape, dtype, &spec) < 0)
		return NULL;
	if (strides != Py_None &&
	    spec_parse_dims(strides, "strides", counts, &n_strides) < 0)
		return NULL;
	if (strides != Py_None && n_strides != spec.n_dims)
		return errors_raise_text(-EINVAL,
					 "strides has %u items and shape %u; "
					 "give one for each dimension",
					 n_strides, spec.n_dims);
	if (call_begin(&call) < 0)
		return NULL;
	r = fsdp_view(tensor->handle->tensor, &spec,
		      strides == Py_None ? NULL : counts, offset, &view);
	call_end(&call);
	return r < 0 ? errors_raise(r) : tensor_new(tensor->handle->link, view);
}

static PyObject *tensor_wait(PyObject *self, PyObject *args)
{
	struct tensor *tensor = (struct tensor *)self;
	unsigned long long stream;
	struct call call;
	int timeout_ms;
	int r;

	if (!PyArg_ParseTuple(args, "Ki", &stream, &timeout_ms))
		return NULL;
	if (call_begin(&call) < 0)
		return NULL;
	r = fsdp_tensor_wait(tensor->handle->tensor, (void *)(uintptr_t)stream,
			     timeout_ms);
	call_end(&call);
	if (r < 0)
		return errors_raise(r);
	Py_RETURN_NONE;
}

/* --- attributes ----------------------------------------------------------- */

/* Each name is made once, since every export needs one. */
static PyObject *dtype_name(enum fsdp_dtype dtype)
{
	static PyObject *names[FSDP_C128 + 1];

	if ((size_t)dtype >= sizeof(names) / sizeof(*names))
		return PyUnicode_FromString(fsdp_dtype_name(dtype));
	if (!names[dtype])
		names[dtype] =
			PyUnicode_InternFromString(fsdp_dtype_name(dtype));
	Py_XINCREF(names[dtype]);
	return names[dtype];
}

enum field {
	SHAPE,
	STRIDES,
	DTYPE,
	NBYTES,
	NAME,
	VERSION,
	DEVICE,
	TAINTED,
	ID
};

static PyObject *tensor_field(PyObject *self, void *field)
{
	struct fsdp_info info = {.struct_size = sizeof(info)};
	char device[FSDP_DEVICE_TEXT];
	int r;

	r = fsdp_tensor_info(((struct tensor *)self)->handle->tensor, &info);
	if (r < 0)
		return errors_raise(r);
	switch ((enum field)(uintptr_t)field) {
	case SHAPE:
		return spec_dims(info.shape, info.n_dims);
	case STRIDES:
		return spec_dims(info.strides, info.n_dims);
	case DTYPE:
		return dtype_name(info.dtype);
	case NBYTES:
		return PyLong_FromUnsignedLongLong(handle_n_bytes(&info));
	case NAME:
		return Py_BuildValue("z", *info.name ? info.name : NULL);
	case VERSION:
		return PyLong_FromUnsignedLongLong(info.version);
	case DEVICE:
		fsdp_device_format(&info.device, device);
		return PyUnicode_FromString(device);
	case TAINTED:
		return PyBool_FromLong(info.is_tainted);
	case ID: /* slot and generation identify a version forever */
		return Py_BuildValue("(IK)", info.slot,
				     (unsigned long long)info.generation);
	}
	return NULL;
}

static PyObject *tensor_readonly(PyObject *self, void *closure)
{
	struct fsdp_tensor *tensor = ((struct tensor *)self)->handle->tensor;

	(void)closure;
	return PyBool_FromLong(!fsdp_data_mut(tensor));
}

static PyObject *tensor_held(PyObject *self, void *closure)
{
	(void)closure;
	return PyBool_FromLong(((struct tensor *)self)->n_holds > 0);
}

/* --- the type ------------------------------------------------------------- */

static PyMethodDef methods[] = {
	{"hold", tensor_hold, METH_NOARGS,
	 "hold()\n--\n\n"
	 "Add a hold, without a system call; after the last release() it "
	 "holds\n"
	 "the tensor again, if that version still exists (else fsdp.Gone)."},
	{"release", tensor_release, METH_NOARGS,
	 "release()\n--\n\n"
	 "Drop one hold, without a system call. Arrays that were made of the\n"
	 "tensor have holds of their own and stay valid."},
	{"release_on", tensor_release_on, METH_O,
	 "release_on(stream)\n--\n\n"
	 "Drop one hold when this CUDA stream (an int) has done its work."},
	{"__enter__", tensor_enter, METH_NOARGS, NULL},
	{"__exit__", tensor_exit, METH_VARARGS, NULL},
	{"copy_from", buffer_copy_from, METH_O,
	 "copy_from(source)\n--\n\n"
	 "Copy the bytes of an object with the buffer protocol, which must "
	 "have\n"
	 "as many. Only before the tensor is published."},
	{"_publish", tensor_publish, METH_VARARGS, NULL},
	{"_ticket", tensor_ticket, METH_VARARGS, NULL},
	{"_view", tensor_view, METH_VARARGS, NULL},
	{"_wait", tensor_wait, METH_VARARGS, NULL},
	{"_capsule", dlpack_capsule, METH_VARARGS, NULL},
	{NULL, NULL, 0, NULL},
};

#define FIELD(name, field, doc)                                                \
	{                                                                      \
		name, tensor_field, NULL, doc, (void *)(uintptr_t)(field)      \
	}

static PyGetSetDef attributes[] = {
	FIELD("shape", SHAPE, "Elements in each dimension."),
	FIELD("strides", STRIDES,
	      "Elements from one item of a dimension to the next."),
	FIELD("dtype", DTYPE, "Name of the type, such as \"bf16\"."),
	FIELD("nbytes", NBYTES, "Bytes of the elements."),
	FIELD("name", NAME, "None if it was not published by a name."),
	FIELD("version", VERSION, "Of the name, from 1; 0: no name."),
	FIELD("device", DEVICE, "\"host\" or \"GPU-<uuid>\"."),
	FIELD("tainted", TAINTED,
	      "True if its writer died before it was complete."),
	{"readonly", tensor_readonly, NULL,
	 "False between alloc() and publish() in the process that allocated,\n"
	 "and after redeem(writable=True).",
	 NULL},
	{"held", tensor_held, NULL, "False after the last release().", NULL},
	FIELD("_id", ID, NULL),
	{NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
	{Py_tp_doc, (void *)"One version of one tensor, held.\n\n"
			    "Client.alloc(), Client.get() and fsdp.redeem() "
			    "make them."},
	{Py_tp_dealloc, tensor_dealloc},
	{Py_tp_methods, methods},
	{Py_tp_getset, attributes},
	{Py_bf_getbuffer, buffer_get},
	{Py_bf_releasebuffer, buffer_release},
	{0, NULL},
};

int tensor_add(PyObject *module)
{
	tensor_type = type_add(module, "fsdp.Tensor", sizeof(struct tensor),
			       Py_TPFLAGS_DISALLOW_INSTANTIATION, slots);
	return tensor_type ? 0 : -1;
}
