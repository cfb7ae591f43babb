#include "pieces.h"
#include "errors.h"
#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define ALIGN 64
/* Other threads run during copies from this number of bytes on. Below it, to
 * get the interpreter's lock back may take longer than the copy. */
#define LONG_COPY ((size_t)256 << 10)

/* --- writing -------------------------------------------------------------- */

/* The buffers of a sequence. They stay as long as this struct. */
struct pieces {
	Py_buffer *buffers;
	Py_ssize_t n;
};

static size_t aligned(size_t size)
{
	return (size + ALIGN - 1) & ~(size_t)(ALIGN - 1);
}

static size_t head_size(size_t n)
{
	return aligned((1 + n) * sizeof(uint64_t));
}

static void pieces_close(struct pieces *pieces)
{
	while (pieces->n > 0)
		PyBuffer_Release(&pieces->buffers[--pieces->n]);
	free(pieces->buffers);
}

/* Returns -1 with an exception set if a piece is no buffer. */
static int pieces_open(struct pieces *pieces, PyObject *list)
{
	Py_ssize_t n = PyList_Size(list);

	if (n < 0)
		return -1;
	pieces->n = 0;
	pieces->buffers = malloc((size_t)(n + 1) * sizeof(*pieces->buffers));
	if (!pieces->buffers) {
		PyErr_NoMemory();
		return -1;
	}
	for (; pieces->n < n; pieces->n++)
		if (PyObject_GetBuffer(PyList_GetItem(list, pieces->n),
				       &pieces->buffers[pieces->n],
				       PyBUF_SIMPLE) < 0) {
			pieces_close(pieces);
			return -1;
		}
	return 0;
}

static size_t item_size(const struct pieces *pieces)
{
	size_t size = head_size((size_t)pieces->n);

	for (Py_ssize_t i = 0; i < pieces->n; i++)
		size += aligned((size_t)pieces->buffers[i].len);
	return size;
}

PyObject *pieces_size(PyObject *module, PyObject *list)
{
	struct pieces pieces;
	size_t size;

	(void)module;
	if (pieces_open(&pieces, list) < 0)
		return NULL;
	size = item_size(&pieces);
	pieces_close(&pieces);
	return PyLong_FromSize_t(size);
}

static void write_item(char *memory, const struct pieces *pieces,
		       Py_ssize_t n_filled)
{
	uint64_t *words = (uint64_t *)(void *)memory;
	size_t at = head_size((size_t)pieces->n);

	*words = (uint64_t)pieces->n;
	for (Py_ssize_t i = 0; i < pieces->n; i++) {
		size_t size = (size_t)pieces->buffers[i].len;

		words[1 + i] = size;
		if (i >= n_filled)
			memcpy(memory + at, pieces->buffers[i].buf, size);
		at += aligned(size);
	}
}

/* Returns -1 with an exception set if the item does not fit. */
static int fill(const Py_buffer *memory, const struct pieces *pieces,
		Py_ssize_t n_filled)
{
	size_t size = item_size(pieces);
	PyThreadState *thread = NULL;

	if (size > (size_t)memory->len) {
		errors_raise_text(-EINVAL,
				  "an item of %zu bytes does not fit into %zd",
				  size, memory->len);
		return -1;
	}
	if (size >= LONG_COPY)
		thread = PyEval_SaveThread();
	write_item(memory->buf, pieces, n_filled);
	if (thread)
		PyEval_RestoreThread(thread);
	return 0;
}

PyObject *pieces_fill(PyObject *module, PyObject *args)
{
	struct pieces pieces;
	PyObject *list;
	Py_buffer memory;
	Py_ssize_t n_filled;
	int r;

	(void)module;
	if (!PyArg_ParseTuple(args, "w*On", &memory, &list, &n_filled))
		return NULL;
	r = pieces_open(&pieces, list);
	if (r == 0) {
		r = fill(&memory, &pieces, n_filled);
		pieces_close(&pieces);
	}
	PyBuffer_Release(&memory);
	return r < 0 ? NULL : Py_NewRef(Py_None);
}

/* --- reading -------------------------------------------------------------- */

static void *refuse(void)
{
	return errors_raise_text(-EINVAL, "the item has another format than "
					  "Channel.put() sends; its producer "
					  "must use it, too");
}

/* Returns the word of another process, which may change it meanwhile. */
static uint64_t word(const Py_buffer *memory, size_t i)
{
	return atomic_load_explicit(&((_Atomic uint64_t *)memory->buf)[i],
				    memory_order_relaxed);
}

/* Sets the slices of the view, which is of this memory, in the list. */
static PyObject *split(PyObject *list, PyObject *view, const Py_buffer *memory)
{
	size_t end = (size_t)memory->len, n = (size_t)PyList_Size(list);
	size_t at = head_size(n);

	for (size_t i = 0; i < n; i++) {
		uint64_t size = word(memory, 1 + i);
		PyObject *slice;

		if (at > end || size > end - at)
			return refuse();
		slice = PySequence_GetSlice(view, (Py_ssize_t)at,
					    (Py_ssize_t)(at + size));
		if (!slice || PyList_SetItem(list, (Py_ssize_t)i, slice) < 0)
			return NULL;
		at += aligned(size);
	}
	return list;
}

static PyObject *pieces_of(PyObject *object, const Py_buffer *memory)
{
	size_t n_words = (size_t)memory->len / sizeof(uint64_t);
	uint64_t n = n_words ? word(memory, 0) : 0;
	PyObject *list, *view;

	if (n == 0 || n >= n_words)
		return refuse();
	list = PyList_New((Py_ssize_t)n);
	view = PyMemoryView_FromObject(object);
	if (!list || !view || !split(list, view, memory))
		Py_CLEAR(list);
	Py_XDECREF(view);
	return list;
}

PyObject *pieces_split(PyObject *module, PyObject *object)
{
	PyObject *list;
	Py_buffer memory;

	(void)module;
	if (PyObject_GetBuffer(object, &memory, PyBUF_SIMPLE) < 0)
		return NULL;
	list = pieces_of(object, &memory);
	PyBuffer_Release(&memory);
	return list;
}
