/*
 * Collation in place: what torch's default_collate() makes of samples, written
 * into the memory of a message as a plain batch (plain.h). Samples are lists,
 * tuples and dicts of tensors, numbers and strings.
 */
#pragma once
#include "python.h"

/*
 * stack_plain(memory, at, samples, tensor_type, exchange): stack the samples'
 * tensors and numbers in the memory from offset `at` on. `exchange` is the
 * capsule by which tensor_type shows its tensors without a call of Python.
 * Returns the end of the stacked elements and the bytes of the batch, which
 * write_plain() takes as a record and for which there is room. None: the
 * samples are of another kind, differ in shape, or find no room; then
 * default_collate() has to look at them.
 */
PyObject *stack_plain(PyObject *module, PyObject *args);
