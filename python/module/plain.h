/*
 * Plain batches: lists, tuples and dicts of numbers, strings, and tensors that
 * are in the memory of the message already. They need no pickle.
 *
 * A message begins with three words of 64 bits: where the batch begins, all
 * ones, and the size of the batch. Each value is a byte that says what it is,
 * and then its bytes; a container has the count of its values first. A tensor
 * is a record: struct plain_tensor and its shape.
 */
#pragma once
#include "python.h"

/*
 * write_plain(memory, at, batch, records): write the batch from offset `at` of
 * the memory, and the head. `records` is a dict of the bytes that stand for
 * tensors, or for whole batches, by id(); each may occur once. Returns the end
 * of the message, or None if the batch is not plain or finds no room.
 */
PyObject *plain_write(PyObject *module, PyObject *args);

/*
 * read_plain(memory, from_dlpack): the batch of a message. Its tensors, which
 * from_dlpack() makes of capsules, show the memory and keep it. None if the
 * message is a pickle.
 */
PyObject *plain_read(PyObject *module, PyObject *args);
