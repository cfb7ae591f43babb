#include "stack.h"
#include "dlpack_abi.h"
#include "writer.h"
#include <stdlib.h>
#include <string.h>

#define ALIGN 64
/* limit for a batch without its elements, in bytes */
#define SCRATCH ((size_t)64 << 10)
/* bytes that the worker needs for the other parts of the message */
#define ENVELOPE  64
#define MAX_DEPTH 32

/* The destination of elements, and the batch that refers to them. */
struct stacker {
	char *memory;
	size_t at, capacity;
	struct writer writer;
	PyTypeObject *tensor_type;
	const struct dl_exchange *exchange;
	unsigned int depth;
};

/* One value of each sample. It has its own references, since torch may run
 * other code, which can change the samples. */
struct column {
	PyObject **values;
	size_t n;
	bool is_tuple; /* torch makes a tuple of it, not a list */
};

static bool column_init(struct column *column, size_t n)
{
	column->n = n;
	column->values = calloc(n + 1, sizeof(*column->values));
	return column->values;
}

static void column_deinit(struct column *column)
{
	for (size_t i = 0; column->values && i < column->n; i++)
		Py_XDECREF(column->values[i]);
	free(column->values);
}

/* Returns false if there is no value. */
static bool column_set(struct column *column, size_t i, PyObject *value)
{
	PyObject *old = column->values[i];

	column->values[i] = Py_XNewRef(value);
	Py_XDECREF(old);
	return value;
}

static bool stack_column(struct stacker *stacker, const struct column *column);

/* --- elements ------------------------------------------------------------- */

/* Takes space for `n` values of a shape, and records it in the batch. Returns
 * NULL if the buffer is too small. */
static char *place(struct stacker *stacker, size_t n,
		   const struct dl_tensor *value, size_t size)
{
	size_t at = (stacker->at + ALIGN - 1) & ~(size_t)(ALIGN - 1), total;
	struct plain_tensor record = {.at = at, .dtype = value->dtype};
	int64_t count = (int64_t)n;

	if (__builtin_mul_overflow(n, size, &total) || at > stacker->capacity ||
	    total > stacker->capacity - at)
		return NULL;
	record.n_dims = (uint32_t)value->n_dims + 1;
	if (!writer_put_tag(&stacker->writer, TAG_TENSOR) ||
	    !writer_put(&stacker->writer, &record, sizeof(record)) ||
	    !writer_put(&stacker->writer, &count, sizeof(count)) ||
	    !writer_put(&stacker->writer, value->shape,
			(size_t)value->n_dims * sizeof(count)))
		return NULL;
	stacker->at = at + total;
	return stacker->memory + at;
}

/* Complex tensors are not known, because they may be conjugate views, which
 * DLPack does not describe. */
static bool is_known(struct dl_dtype dtype)
{
	return dtype.lanes == 1 && dtype.bits % 8 == 0 &&
	       (dtype.code == CODE_INT || dtype.code == CODE_UINT ||
		dtype.code == CODE_FLOAT || dtype.code == CODE_BFLOAT ||
		dtype.code == CODE_BOOL);
}

/* Returns the bytes of a tensor whose elements are contiguous. Returns 0 if
 * they are not, or if there are none. */
static size_t size_of(const struct dl_tensor *tensor)
{
	size_t size = tensor->dtype.bits / 8;
	int64_t step = 1;

	for (int32_t i = tensor->n_dims; i-- > 0; step *= tensor->shape[i]) {
		if (tensor->shape[i] != 1 && tensor->strides &&
		    tensor->strides[i] != step)
			return 0;
		size *= (size_t)tensor->shape[i];
	}
	return size;
}

static bool is_false(PyObject *value)
{
	Py_XDECREF(value);
	return value == Py_False;
}

/* Made once, since each name is looked up for each tensor. */
static PyObject *requires_grad, *is_neg;

static bool make_names(void)
{
	if (!requires_grad)
		requires_grad = PyUnicode_InternFromString("requires_grad");
	if (!is_neg)
		is_neg = PyUnicode_InternFromString("is_neg");
	return requires_grad && is_neg;
}

/* Returns whether the tensor needs gradients or is a view with the sign turned.
 * Only floats can be either. */
static bool is_turned(PyObject *value, const struct dl_tensor *tensor)
{
	if (tensor->dtype.code != CODE_FLOAT &&
	    tensor->dtype.code != CODE_BFLOAT)
		return false;
	return !is_false(PyObject_GetAttr(value, requires_grad)) ||
	       !is_false(PyObject_CallMethodObjArgs(value, is_neg, NULL));
}

/* Returns the bytes of a tensor that can be copied as it is, or 0 if it
 * cannot. */
static size_t look(const struct stacker *stacker, PyObject *value,
		   struct dl_tensor *ret)
{
	if (stacker->exchange->look(value, ret) < 0 ||
	    ret->device.type != DEVICE_CPU || !is_known(ret->dtype) ||
	    is_turned(value, ret))
		return 0;
	return size_of(ret);
}

static bool is_alike(const struct dl_tensor *a, const struct dl_tensor *b)
{
	return memcmp(&a->dtype, &b->dtype, sizeof(a->dtype)) == 0 &&
	       a->n_dims == b->n_dims &&
	       memcmp(a->shape, b->shape,
		      (size_t)a->n_dims * sizeof(*a->shape)) == 0;
}

static bool stack_tensors(struct stacker *stacker, const struct column *column)
{
	struct dl_tensor first, tensor;
	size_t size = look(stacker, column->values[0], &first);
	char *to = size ? place(stacker, column->n, &first, size) : NULL;

	for (size_t i = 0; to && i < column->n; i++) {
		if (look(stacker, column->values[i], &tensor) != size ||
		    !is_alike(&first, &tensor))
			return false;
		memcpy(to + i * size, (char *)tensor.data + tensor.byte_offset,
		       size);
	}
	return to != NULL;
}

static bool stack_ints(struct stacker *stacker, const struct column *column)
{
	const struct dl_tensor one = {.dtype = {CODE_INT, 64, 1}};
	char *to = place(stacker, column->n, &one, sizeof(int64_t));

	for (size_t i = 0; to && i < column->n; i++) {
		int64_t value = PyLong_AsLongLong(column->values[i]);

		if (value == -1 && PyErr_Occurred())
			return false;
		memcpy(to + i * sizeof(value), &value, sizeof(value));
	}
	return to != NULL;
}

static bool stack_floats(struct stacker *stacker, const struct column *column)
{
	const struct dl_tensor one = {.dtype = {CODE_FLOAT, 64, 1}};
	char *to = place(stacker, column->n, &one, sizeof(double));

	for (size_t i = 0; to && i < column->n; i++) {
		double value = PyFloat_AsDouble(column->values[i]);

		memcpy(to + i * sizeof(value), &value, sizeof(value));
	}
	return to != NULL;
}

static bool keep_texts(struct stacker *stacker, const struct column *column)
{
	if (!writer_put_count(&stacker->writer,
			      column->is_tuple ? TAG_TUPLE : TAG_LIST,
			      (Py_ssize_t)column->n))
		return false;
	for (size_t i = 0; i < column->n; i++)
		if (!writer_put_value(&stacker->writer, column->values[i]))
			return false;
	return true;
}

/* --- containers ----------------------------------------------------------- */

/* Stacks the values of one key. */
static bool stack_values(struct stacker *stacker, const struct column *dicts,
			 PyObject *key, struct column *inner)
{
	if (!writer_put_value(&stacker->writer, key))
		return false;
	for (size_t i = 0; i < dicts->n; i++) {
		if (!column_set(inner, i,
				PyDict_GetItemWithError(dicts->values[i], key)))
			return false;
	}
	return stack_column(stacker, inner);
}

static bool stack_dicts(struct stacker *stacker, const struct column *dicts,
			struct column *inner)
{
	PyObject *first = dicts->values[0], *key, *value;
	bool is_stacked = true;
	Py_ssize_t at = 0;

	if (!writer_put_count(&stacker->writer, TAG_DICT, PyDict_Size(first)))
		return false;
	while (is_stacked && PyDict_Next(first, &at, &key, &value)) {
		/* A key of another type could run code of its own, and so could
		 * the keys of the other dicts, which may then drop this key. */
		if (Py_TYPE(key) != &PyUnicode_Type)
			return false;
		Py_INCREF(key);
		is_stacked = stack_values(stacker, dicts, key, inner);
		Py_DECREF(key);
	}
	return is_stacked;
}

/* Lists and tuples both become a list. */
static bool stack_sequences(struct stacker *stacker,
			    const struct column *sequences,
			    struct column *inner)
{
	bool is_list = Py_TYPE(sequences->values[0]) == &PyList_Type;
	Py_ssize_t size = PySequence_Size(sequences->values[0]);

	for (size_t i = 0; i < sequences->n; i++)
		if (PySequence_Size(sequences->values[i]) != size)
			return false;
	inner->is_tuple = true;
	if (!writer_put_count(&stacker->writer, TAG_LIST, size))
		return false;
	for (Py_ssize_t at = 0; at < size; at++) {
		for (size_t i = 0; i < sequences->n; i++) {
			PyObject *each = sequences->values[i];

			if (!column_set(inner, i,
					is_list ? PyList_GetItem(each, at)
						: PyTuple_GetItem(each, at)))
				return false;
		}
		if (!stack_column(stacker, inner))
			return false;
	}
	return true;
}

static bool stack_containers(struct stacker *stacker,
			     const struct column *column)
{
	PyTypeObject *type = Py_TYPE(column->values[0]);
	struct column inner = {0};
	bool is_dict = type == &PyDict_Type, is_stacked = false;

	if ((!is_dict && type != &PyList_Type && type != &PyTuple_Type) ||
	    stacker->depth == MAX_DEPTH)
		return false;
	stacker->depth++;
	if (column_init(&inner, column->n))
		is_stacked = is_dict ? stack_dicts(stacker, column, &inner)
				     : stack_sequences(stacker, column, &inner);
	stacker->depth--;
	column_deinit(&inner);
	return is_stacked;
}

/* Returns false, possibly with an exception set, if torch must do the work. */
static bool stack_column(struct stacker *stacker, const struct column *column)
{
	PyTypeObject *type = Py_TYPE(column->values[0]);

	for (size_t i = 1; i < column->n; i++)
		if (Py_TYPE(column->values[i]) != type)
			return false;
	if (type == stacker->tensor_type)
		return stack_tensors(stacker, column);
	if (type == &PyLong_Type)
		return stack_ints(stacker, column);
	if (type == &PyFloat_Type)
		return stack_floats(stacker, column);
	if (type == &PyUnicode_Type || type == &PyBytes_Type)
		return keep_texts(stacker, column);
	return stack_containers(stacker, column);
}

/* --- the call ------------------------------------------------------------- */

static PyObject *stack_samples(struct stacker *stacker, PyObject *samples)
{
	struct column column = {0};
	char *scratch = malloc(SCRATCH);
	PyObject *result = NULL;
	bool is_stacked = false;
	size_t size;

	if (column_init(&column, (size_t)PyList_Size(samples)) && column.n &&
	    scratch) {
		for (size_t i = 0; i < column.n; i++)
			(void)column_set(
				&column, i,
				PyList_GetItem(samples, (Py_ssize_t)i));
		stacker->writer.at = scratch;
		stacker->writer.end = scratch + SCRATCH;
		is_stacked = stack_column(stacker, &column);
	}
	size = is_stacked ? (size_t)(stacker->writer.at - scratch) : 0;
	if (is_stacked && stacker->capacity - stacker->at >= size + ENVELOPE) {
		result = Py_BuildValue("(ny#)", (Py_ssize_t)stacker->at,
				       scratch, (Py_ssize_t)size);
	} else {
		PyErr_Clear();
		result = Py_NewRef(Py_None);
	}
	column_deinit(&column);
	free(scratch);
	return result;
}

static const struct dl_exchange *exchange_of(PyObject *capsule)
{
	const struct dl_exchange *exchange =
		PyCapsule_GetPointer(capsule, DL_EXCHANGE_NAME);

	while (exchange && exchange->major != 1)
		exchange = exchange->older;
	return exchange && exchange->look ? exchange : NULL;
}

PyObject *stack_plain(PyObject *module, PyObject *args)
{
	struct stacker stacker = {.depth = 0};
	PyObject *samples, *type, *capsule, *result;
	Py_buffer memory;
	Py_ssize_t at;

	(void)module;
	if (!PyArg_ParseTuple(args,
			      "w*n"
			      "O!O!O",
			      &memory, &at, &PyList_Type, &samples,
			      &PyType_Type, &type, &capsule))
		return NULL;
	if (!make_names()) {
		PyBuffer_Release(&memory);
		return NULL;
	}
	stacker.memory = memory.buf;
	stacker.at = (size_t)at;
	stacker.capacity = (size_t)memory.len;
	stacker.tensor_type = (PyTypeObject *)type;
	stacker.exchange = exchange_of(capsule);
	if (stacker.exchange && at >= 0 && at <= memory.len)
		result = stack_samples(&stacker, samples);
	else
		result = PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
	PyBuffer_Release(&memory);
	return result;
}
