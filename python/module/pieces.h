/*
 * An item of a channel is a number of pieces: buffers, the last of which is a
 * pickle, and the others have the elements of arrays. Its format is the number
 * of the pieces, the size of each, in words of 64 bits, and the pieces, each at
 * a multiple of 64.
 */
#pragma once
#include "python.h"

/* Implements size_of_item(pieces). Returns the bytes of an item with these
 * buffers. */
PyObject *pieces_size(PyObject *module, PyObject *pieces);

/*
 * Implements fill_item(memory, pieces, n_filled): writes an item with these
 * buffers to the memory, which must be large enough. The first `n_filled`
 * pieces are there already. Other threads run during a long copy.
 */
PyObject *pieces_fill(PyObject *module, PyObject *args);

/* Implements split_item(memory). Returns a list of views of the pieces. Raises
 * fsdp.Invalid if the memory has no such item. */
PyObject *pieces_split(PyObject *module, PyObject *memory);
