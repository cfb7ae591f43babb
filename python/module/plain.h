/*
 * Plain batches are lists, tuples and dicts of numbers, strings, and tensors
 * whose elements are already in the memory of the message. They need no pickle.
 *
 * A message begins with three words of 64 bits: the offset of the batch, all
 * ones, and the size of the batch. Each value is a byte that says its kind,
 * followed by its bytes; a container begins with the count of its values. A
 * tensor is a record: struct plain_tensor and its shape.
 */
#pragma once
#include "python.h"

/*
 * Implements write_plain(memory, at, batch, records): writes the batch at
 * offset `at` of the memory, and the three words at the beginning. `records` is
 * a dict that maps the id() of tensors, or of whole batches, to the bytes that
 * are written for them; each may occur once. Returns the offset after the
 * message, or None if the batch is not plain or does not fit.
 */
PyObject *plain_write(PyObject *module, PyObject *args);

/*
 * Implements read_plain(memory, from_dlpack). Returns the batch of a message.
 * Its tensors, which from_dlpack() makes from capsules, show the memory and
 * keep it. Returns None if the message is a pickle.
 */
PyObject *plain_read(PyObject *module, PyObject *args);
