#include "buffer.h"
#include "call.h"
#include "errors.h"
#include "tensor.h"
#include "type.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The `internal` part of a buffer. It holds the tensor. */
struct export
{
	struct handle *handle;
	Py_ssize_t shape[FSDP_MAX_DIMS], strides[FSDP_MAX_DIMS];
};

/* Letters of Python's module struct, by dtype. NULL means that it has none. */
static const char *const formats[] = {
	[FSDP_BOOL] = "?", [FSDP_U8] = "B",       [FSDP_I8] = "b",
	[FSDP_U16] = "H",  [FSDP_I16] = "h",      [FSDP_U32] = "I",
	[FSDP_I32] = "i",  [FSDP_U64] = "L",      [FSDP_I64] = "l",
	[FSDP_F16] = "e",  [FSDP_BF16] = NULL,    [FSDP_F32] = "f",
	[FSDP_F64] = "d",  [FSDP_F8_E4M3] = NULL, [FSDP_F8_E5M2] = NULL,
	[FSDP_C64] = "Zf", [FSDP_C128] = "Zd",
};

static const char *format_of(enum fsdp_dtype dtype)
{
	/* libfsdp may be newer than this package, and have more dtypes. */
	if ((size_t)dtype >= sizeof(formats) / sizeof(*formats))
		return NULL;
	return formats[dtype];
}

static const char *bits_format(enum fsdp_dtype dtype)
{
	switch (fsdp_dtype_size(dtype)) {
	case 1:
		return "B";
	case 2:
		return "H";
	case 4:
		return "I";
	default:
		return "L";
	}
}

/* Raises BufferError, and returns -1. */
static int refuse(const char *format, const char *what)
{
	PyErr_Format(PyExc_BufferError, format, what);
	return -1;
}

/* Raises BufferError unless the buffer has the form that `flags` asks for. */
static int check_form(const Py_buffer *view, int flags)
{
	bool is_c = PyBuffer_IsContiguous(view, 'C');
	bool is_f = PyBuffer_IsContiguous(view, 'F');
	bool is_ok = true;

	if ((flags & PyBUF_C_CONTIGUOUS) == PyBUF_C_CONTIGUOUS)
		is_ok = is_c;
	else if ((flags & PyBUF_F_CONTIGUOUS) == PyBUF_F_CONTIGUOUS)
		is_ok = is_f;
	else if ((flags & PyBUF_ANY_CONTIGUOUS) == PyBUF_ANY_CONTIGUOUS)
		is_ok = is_c || is_f;
	else if ((flags & PyBUF_STRIDES) != PyBUF_STRIDES)
		is_ok = is_c;
	return is_ok ? 0
		     : refuse("%s", "the tensor is not contiguous; use strides "
				    "or copy it");
}

static void fill(Py_buffer *buffer, struct export *export,
		 const struct view *view, const char *format)
{
	Py_ssize_t itemsize = (Py_ssize_t)fsdp_dtype_size(view->info.dtype);

	for (uint32_t i = 0; i < view->info.n_dims; i++) {
		export->shape[i] = (Py_ssize_t)view->info.shape[i];
		export->strides[i] =
			(Py_ssize_t)view->info.strides[i] * itemsize;
	}
	*buffer = (Py_buffer){
		.buf = view->data,
		.len = (Py_ssize_t)handle_n_bytes(&view->info),
		.itemsize = itemsize,
		.readonly = !view->is_writable,
		.ndim = (int)view->info.n_dims,
		.format = (char *)(uintptr_t)format,
		.shape = export->shape,
		.strides = export->strides,
		.internal = export,
	};
}

/* Clears the fields that `flags` does not ask for. */
static void trim(Py_buffer *buffer, int flags)
{
	if (!(flags & PyBUF_FORMAT))
		buffer->format = NULL;
	if ((flags & PyBUF_STRIDES) != PyBUF_STRIDES)
		buffer->strides = NULL;
	if ((flags & PyBUF_ND) != PyBUF_ND)
		buffer->shape = NULL;
}

static int fill_checked(struct handle *handle, bool as_bits,
			struct export *export, Py_buffer *ret, int flags)
{
	const char *format;
	struct view view;
	int r = handle_view(handle, false, &view);

	if (r == -EOPNOTSUPP)
		return refuse("%s", "the tensor is on a device; use "
				    "torch() or __dlpack__()");
	if (r < 0) {
		errors_raise(r);
		return -1;
	}
	format = as_bits ? bits_format(view.info.dtype)
			 : format_of(view.info.dtype);
	if (!format && (flags & PyBUF_FORMAT))
		return refuse("buffers have no format for %s; use numpy(), "
			      "torch() or __dlpack__()",
			      fsdp_dtype_name(view.info.dtype));
	if ((flags & PyBUF_WRITABLE) && !view.is_writable)
		return refuse("%s", "the tensor is read-only, because it is "
				    "published; copy it");
	fill(ret, export, &view, format);
	if (check_form(ret, flags) < 0)
		return -1;
	trim(ret, flags);
	return 0;
}

static int export_fill(struct handle *handle, bool as_bits, Py_buffer *ret,
		       int flags)
{
	struct export *export = malloc(sizeof(*export));
	int r;

	ret->obj = NULL;
	if (!export) {
		PyErr_NoMemory();
		return -1;
	}
	r = handle_export(handle);
	if (r < 0) {
		free(export);
		errors_raise(r);
		return -1;
	}
	export->handle = handle;
	if (fill_checked(handle, as_bits, export, ret, flags) == 0)
		return 0;
	handle_unexport(handle);
	free(export);
	ret->obj = NULL;
	return -1;
}

int buffer_get(PyObject *self, Py_buffer *view, int flags)
{
	int r = export_fill(((struct tensor *)self)->handle, false, view,
			    flags);

	if (r == 0)
		view->obj = Py_NewRef(self);
	return r;
}

void buffer_release(PyObject *self, Py_buffer *view)
{
	struct export *export = view->internal;

	(void)self;
	handle_unexport(export->handle);
	free(export);
}

/* --- copying -------------------------------------------------------------- */

static int copy_contiguous(struct handle *handle, const Py_buffer *source)
{
	struct call call;
	int r;

	if (call_begin(&call) < 0)
		return -1;
	r = fsdp_copy_in(handle->tensor, 0, source->buf, (uint64_t)source->len);
	call_end(&call);
	if (r < 0) {
		errors_raise(r);
		return -1;
	}
	return 0;
}

/* Copies a source that is not contiguous, in the order of C. */
static int copy_strided(struct handle *handle, const Py_buffer *source)
{
	void *to = fsdp_data_mut(handle->tensor);

	if (!to) {
		errors_raise_text(-EACCES,
				  "the tensor is read-only, or on a device; "
				  "copy from a contiguous source");
		return -1;
	}
	return PyBuffer_ToContiguous(to, source, source->len, 'C');
}

static int copy(struct handle *handle, const Py_buffer *source)
{
	struct fsdp_info info = {.struct_size = sizeof(info)};
	int r = fsdp_tensor_info(handle->tensor, &info);

	if (r < 0) {
		errors_raise(r);
		return -1;
	}
	if ((uint64_t)source->len != handle_n_bytes(&info)) {
		errors_raise_text(-ERANGE,
				  "the source has %zd bytes and the tensor "
				  "%llu; they must be equal",
				  source->len,
				  (unsigned long long)handle_n_bytes(&info));
		return -1;
	}
	if (source->len == 0)
		return 0;
	if (!handle_is_contiguous(&info)) {
		errors_raise_text(-EOPNOTSUPP,
				  "the tensor's elements are not one after "
				  "another; copy into numpy()");
		return -1;
	}
	return PyBuffer_IsContiguous(source, 'C')
		       ? copy_contiguous(handle, source)
		       : copy_strided(handle, source);
}

PyObject *buffer_copy_from(PyObject *self, PyObject *source)
{
	struct handle *handle = ((struct tensor *)self)->handle;
	Py_buffer view;
	int r;

	if (PyObject_GetBuffer(source, &view, PyBUF_FULL_RO) < 0)
		return NULL;
	/* The export keeps the tensor, which another thread may release
	 * meanwhile. */
	r = handle_export(handle);
	if (r < 0) {
		errors_raise(r);
	} else {
		r = copy(handle, &view);
		handle_unexport(handle);
	}
	PyBuffer_Release(&view);
	if (r < 0)
		return NULL;
	Py_RETURN_NONE;
}

/* --- elements as integers ------------------------------------------------- */

static PyTypeObject *bits_type;

struct bits {
	PyObject_HEAD struct tensor *tensor;
};

static PyObject *bits_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	struct tensor *tensor;
	PyObject *object;
	struct bits *bits;

	(void)kwargs;
	if (!PyArg_ParseTuple(args, "O", &object))
		return NULL;
	tensor = tensor_of(object);
	if (!tensor)
		return NULL;
	bits = PyObject_New(struct bits, type);
	if (bits)
		bits->tensor = (struct tensor *)Py_NewRef(object);
	return (PyObject *)bits;
}

static void bits_dealloc(PyObject *self)
{
	PyTypeObject *type = Py_TYPE(self);

	Py_DECREF(((struct bits *)self)->tensor);
	PyObject_Free(self);
	Py_DECREF(type);
}

static int bits_get(PyObject *self, Py_buffer *view, int flags)
{
	int r = export_fill(((struct bits *)self)->tensor->handle, true, view,
			    flags);

	if (r == 0)
		view->obj = Py_NewRef(self);
	return r;
}

static PyType_Slot slots[] = {
	{Py_tp_new, bits_new},
	{Py_tp_dealloc, bits_dealloc},
	{Py_bf_getbuffer, bits_get},
	{Py_bf_releasebuffer, buffer_release},
	{0, NULL},
};

int buffer_add(PyObject *module)
{
	bits_type = type_add(module, "fsdp._fsdp.Bits", sizeof(struct bits), 0,
			     slots);
	return bits_type ? 0 : -1;
}
