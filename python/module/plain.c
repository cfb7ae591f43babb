#include "plain.h"
#include "dlpack_abi.h"
#include "errors.h"
#include "link.h"
#include "writer.h"
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define MAX_DEPTH 32 /* limit for nested containers */
#define MAX_DIMS  64

struct head {
	uint64_t at, mark, size;
};

/* In place of this, a message with a pickle has the number of its pieces. */
#define MARK UINT64_MAX

/* --- writing -------------------------------------------------------------- */

static PyObject *write_to(const Py_buffer *memory, Py_ssize_t at,
			  PyObject *batch, PyObject *records)
{
	struct writer writer = {.records = records};
	struct head head = {.at = (uint64_t)at, .mark = MARK};

	if (at < (Py_ssize_t)sizeof(head) || at > memory->len)
		Py_RETURN_NONE;
	writer.at = (char *)memory->buf + at;
	writer.end = (char *)memory->buf + memory->len;
	if (!writer_put_value(&writer, batch)) {
		PyErr_Clear();
		Py_RETURN_NONE;
	}
	head.size = (uint64_t)(writer.at - ((char *)memory->buf + at));
	memcpy(memory->buf, &head, sizeof(head));
	return PyLong_FromSsize_t(at + (Py_ssize_t)head.size);
}

PyObject *plain_write(PyObject *module, PyObject *args)
{
	PyObject *batch, *records, *end;
	Py_buffer memory;
	Py_ssize_t at;

	(void)module;
	if (!PyArg_ParseTuple(args,
			      "w*n"
			      "OO!",
			      &memory, &at, &batch, &PyDict_Type, &records))
		return NULL;
	end = write_to(&memory, at, batch, records);
	PyBuffer_Release(&memory);
	return end;
}

/* --- the memory of a message ---------------------------------------------- */

/* The users of the memory are its tensors and the call that reads it. */
struct memory {
	Py_buffer view;
	_Atomic uint32_t n_users;
};

/* Tensors end on any thread, so this takes the interpreter's lock. Once the
 * interpreter ends, the memory is kept. */
static void memory_drop(struct memory *memory)
{
	PyGILState_STATE gil;

	/* Acquire and release: another writer may get the buffer after this. */
	if (atomic_fetch_sub_explicit(&memory->n_users, 1,
				      memory_order_acq_rel) > 1 ||
	    link_is_left_open())
		return;
	gil = PyGILState_Ensure();
	PyBuffer_Release(&memory->view);
	PyGILState_Release(gil);
	free(memory);
}

static struct memory *memory_new(PyObject *object)
{
	struct memory *memory = malloc(sizeof(*memory));

	if (!memory)
		return (void *)PyErr_NoMemory();
	if (PyObject_GetBuffer(object, &memory->view, PyBUF_WRITABLE) < 0) {
		free(memory);
		return NULL;
	}
	atomic_init(&memory->n_users, 1);
	return memory;
}

/* --- reading -------------------------------------------------------------- */

struct reader {
	const char *at, *end;
	struct memory *memory;
	PyObject *from_dlpack;
	unsigned int depth;
};

struct leaf {
	struct dl_managed managed;
	struct memory *memory;
	int64_t shape[];
};

static void *refuse(void)
{
	return errors_raise_text(-EINVAL, "the message is not a batch");
}

static bool take(struct reader *reader, void *ret, size_t size)
{
	if ((size_t)(reader->end - reader->at) < size) {
		refuse();
		return false;
	}
	memcpy(ret, reader->at, size);
	reader->at += size;
	return true;
}

/* Takes a count of bytes or values. Each value has at least one byte, so a
 * larger count is an error. */
static bool take_count(struct reader *reader, int64_t *ret)
{
	if (!take(reader, ret, sizeof(*ret)))
		return false;
	if (*ret >= 0 && *ret <= reader->end - reader->at)
		return true;
	refuse();
	return false;
}

static void leaf_end(struct leaf *leaf)
{
	memory_drop(leaf->memory);
	free(leaf);
}

static void leaf_delete(struct dl_managed *managed)
{
	leaf_end((struct leaf *)managed);
}

/* A consumer renames the capsule, and then calls the deleter itself. */
static void leaf_forget(PyObject *capsule)
{
	if (PyCapsule_IsValid(capsule, DL_LEGACY_NAME))
		leaf_end(PyCapsule_GetPointer(capsule, DL_LEGACY_NAME));
}

/* Returns whether the tensor ends within the memory. */
static bool fits(const struct plain_tensor *tensor, const int64_t *shape,
		 uint64_t capacity)
{
	uint64_t size = tensor->dtype.bits / 8;

	if (tensor->dtype.bits % 8 || tensor->dtype.lanes != 1)
		return false;
	for (uint32_t i = 0; i < tensor->n_dims; i++)
		if (shape[i] < 0 ||
		    __builtin_mul_overflow(size, (uint64_t)shape[i], &size))
			return false;
	return tensor->at <= capacity && size <= capacity - tensor->at;
}

static struct leaf *take_leaf(struct reader *reader)
{
	struct memory *memory = reader->memory;
	struct plain_tensor tensor;
	struct leaf *leaf;
	size_t size;

	if (!take(reader, &tensor, sizeof(tensor)))
		return NULL;
	if (tensor.n_dims > MAX_DIMS)
		return refuse();
	size = tensor.n_dims * sizeof(leaf->shape[0]);
	leaf = calloc(1, sizeof(*leaf) + size);
	if (!leaf)
		return (void *)PyErr_NoMemory();
	if (!take(reader, leaf->shape, size) ||
	    !fits(&tensor, leaf->shape, (uint64_t)memory->view.len)) {
		free(leaf);
		return PyErr_Occurred() ? NULL : refuse();
	}
	leaf->managed.tensor = (struct dl_tensor){
		.data = (char *)memory->view.buf + tensor.at,
		.device = {DEVICE_CPU, 0},
		.n_dims = (int32_t)tensor.n_dims,
		.dtype = tensor.dtype,
		.shape = leaf->shape,
	};
	leaf->managed.deleter = leaf_delete;
	leaf->memory = memory;
	/* Relaxed: the reader has a use of its own. */
	atomic_fetch_add_explicit(&memory->n_users, 1, memory_order_relaxed);
	return leaf;
}

static PyObject *take_tensor(struct reader *reader)
{
	struct leaf *leaf = take_leaf(reader);
	PyObject *capsule, *tensor;

	if (!leaf)
		return NULL;
	capsule = PyCapsule_New(leaf, DL_LEGACY_NAME, leaf_forget);
	if (!capsule) {
		leaf_end(leaf);
		return NULL;
	}
	tensor = PyObject_CallFunctionObjArgs(reader->from_dlpack, capsule,
					      NULL);
	Py_DECREF(capsule);
	return tensor;
}

static PyObject *take_int(struct reader *reader)
{
	int64_t n;

	return take(reader, &n, sizeof(n)) ? PyLong_FromLongLong(n) : NULL;
}

static PyObject *take_float(struct reader *reader)
{
	double n;

	return take(reader, &n, sizeof(n)) ? PyFloat_FromDouble(n) : NULL;
}

static PyObject *take_sized(struct reader *reader, enum tag tag)
{
	const char *bytes;
	int64_t size;

	if (!take_count(reader, &size))
		return NULL;
	bytes = reader->at;
	reader->at += size;
	return tag == TAG_STR
		       ? PyUnicode_FromStringAndSize(bytes, (Py_ssize_t)size)
		       : PyBytes_FromStringAndSize(bytes, (Py_ssize_t)size);
}

static PyObject *take_value(struct reader *reader);

static PyObject *take_sequence(struct reader *reader, enum tag tag)
{
	PyObject *sequence, *value;
	int64_t n;
	int r = 0;

	if (!take_count(reader, &n))
		return NULL;
	sequence = tag == TAG_LIST ? PyList_New((Py_ssize_t)n)
				   : PyTuple_New((Py_ssize_t)n);
	for (int64_t i = 0; sequence && i < n; i++) {
		value = take_value(reader);
		if (value)
			r = tag == TAG_LIST
				    ? PyList_SetItem(sequence, i, value)
				    : PyTuple_SetItem(sequence, i, value);
		if (!value || r < 0)
			Py_CLEAR(sequence);
	}
	return sequence;
}

static PyObject *take_dict(struct reader *reader)
{
	PyObject *dict, *key, *value;
	int64_t n;

	if (!take_count(reader, &n))
		return NULL;
	dict = PyDict_New();
	for (int64_t i = 0; dict && i < n; i++) {
		key = take_value(reader);
		value = key ? take_value(reader) : NULL;
		if (!value || PyDict_SetItem(dict, key, value) < 0)
			Py_CLEAR(dict);
		Py_XDECREF(key);
		Py_XDECREF(value);
	}
	return dict;
}

static PyObject *take_container(struct reader *reader, enum tag tag)
{
	PyObject *container;

	if (reader->depth == MAX_DEPTH)
		return refuse();
	reader->depth++;
	container = tag == TAG_DICT ? take_dict(reader)
				    : take_sequence(reader, tag);
	reader->depth--;
	return container;
}

static PyObject *take_value(struct reader *reader)
{
	char tag;

	if (!take(reader, &tag, 1))
		return NULL;
	switch ((enum tag)tag) {
	case TAG_NONE:
		return Py_NewRef(Py_None);
	case TAG_TRUE:
		return Py_NewRef(Py_True);
	case TAG_FALSE:
		return Py_NewRef(Py_False);
	case TAG_INT:
		return take_int(reader);
	case TAG_FLOAT:
		return take_float(reader);
	case TAG_STR:
	case TAG_BYTES:
		return take_sized(reader, (enum tag)tag);
	case TAG_LIST:
	case TAG_TUPLE:
	case TAG_DICT:
		return take_container(reader, (enum tag)tag);
	case TAG_TENSOR:
		return take_tensor(reader);
	}
	return refuse();
}

static PyObject *read_from(struct memory *memory, PyObject *from_dlpack)
{
	const char *bytes = memory->view.buf;
	size_t size = (size_t)memory->view.len;
	struct reader reader = {.memory = memory, .from_dlpack = from_dlpack};
	struct head head;

	if (size < sizeof(head))
		return refuse();
	memcpy(&head, bytes, sizeof(head));
	if (head.mark != MARK)
		Py_RETURN_NONE;
	if (head.at > size || head.size > size - head.at)
		return refuse();
	reader.at = bytes + head.at;
	reader.end = reader.at + head.size;
	return take_value(&reader);
}

PyObject *plain_read(PyObject *module, PyObject *args)
{
	PyObject *object, *from_dlpack, *batch;
	struct memory *memory;

	(void)module;
	if (!PyArg_ParseTuple(args, "OO", &object, &from_dlpack))
		return NULL;
	memory = memory_new(object);
	if (!memory)
		return NULL;
	batch = read_from(memory, from_dlpack);
	memory_drop(memory);
	return batch;
}
