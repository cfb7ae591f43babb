#include "private.h"
#include "call.h"
#include "errors.h"
#include "tensor.h"
#include "type.h"
#include <errno.h>

struct private
{
	PyObject_HEAD struct handle *handle;
	void *data;
	uint64_t size;
};

/* This call of libfsdp waits for the broker. */
static int map(struct handle *handle, void **ret)
{
	struct call call;
	int r;

	if (call_begin(&call) < 0)
		return -1;
	r = fsdp_private_map(handle->tensor, ret);
	call_end(&call);
	if (r < 0)
		errors_raise(r);
	return r;
}

static int fill(struct private *private, struct handle *handle)
{
	struct fsdp_info info = {.struct_size = sizeof(info)};
	int r = fsdp_tensor_info(handle->tensor, &info);

	if (r < 0) {
		errors_raise(r);
		return -1;
	}
	if (!handle_is_contiguous(&info)) {
		errors_raise_text(-EOPNOTSUPP, "there are bytes between the "
					       "elements; copy them");
		return -1;
	}
	private->size = info.size;
	return map(handle, &private->data);
}

static PyObject *private_new(PyTypeObject *type, PyObject *args,
			     PyObject *kwargs)
{
	struct private *private;
	struct tensor *tensor;
	PyObject *object;
	int r;

	(void)kwargs;
	if (!PyArg_ParseTuple(args, "O", &object))
		return NULL;
	tensor = tensor_of(object);
	if (!tensor)
		return NULL;
	r = handle_export(tensor->handle);
	if (r < 0)
		return errors_raise(r);
	private = PyObject_New(struct private, type);
	if (!private) {
		handle_unexport(tensor->handle);
		return NULL;
	}
	private->handle = tensor->handle;
	private->data = NULL;
	if (fill(private, tensor->handle) < 0)
		Py_CLEAR(private);
	return (PyObject *)private;
}

static void private_dealloc(PyObject *self)
{
	struct private *private = (struct private *)self;
	PyTypeObject *type = Py_TYPE(self);

	if (private->data) {
		/* This takes long if many pages were written, so other threads
		 * run. */
		Py_BEGIN_ALLOW_THREADS fsdp_private_unmap(private->data,
							  private->size);
		Py_END_ALLOW_THREADS
	}
	handle_unexport(private->handle);
	PyObject_Free(self);
	Py_DECREF(type);
}

static int private_get(PyObject *self, Py_buffer *view, int flags)
{
	const struct private *private = (struct private *)self;

	return PyBuffer_FillInfo(view, self, private->data,
				 (Py_ssize_t) private->size, 0, flags);
}

static PyType_Slot slots[] = {
	{Py_tp_new, private_new},
	{Py_tp_dealloc, private_dealloc},
	{Py_bf_getbuffer, private_get},
	{0, NULL},
};

int private_add(PyObject *module)
{
	PyTypeObject *type = type_add(module, "fsdp._fsdp.Private",
				      sizeof(struct private), 0, slots);

	return type ? 0 : -1;
}
