/*
 * Collation in place: the samples are stacked into the memory of a message as a
 * plain batch (plain.h), with the same result as torch's default_collate().
 * Samples are lists, tuples and dicts of tensors, numbers and strings.
 */
#pragma once
#include "python.h"

/*
 * Implements stack_plain(memory, at, samples, tensor_type, exchange): stacks
 * the samples' tensors and numbers in the memory from offset `at` on.
 * `exchange` is the capsule by which tensor_type shows its tensors without a
 * call of Python. Returns the offset after the stacked elements, and the bytes
 * of the batch, which write_plain() takes as a record and which fit into the
 * memory. Returns None if the samples are of another kind, differ in shape, or
 * do not fit; default_collate() must then stack them.
 */
PyObject *stack_plain(PyObject *module, PyObject *args);
