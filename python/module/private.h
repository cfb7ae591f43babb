/*
 * fsdp._fsdp.Private(tensor) shows the elements of a bundle's tensor as bytes
 * that this process may change, by the buffer protocol. Only the pages that it
 * writes are copied. It has a hold of its own, so that the broker still counts
 * the memory. It raises EOPNOTSUPP if the memory may change later; the caller
 * must copy it then.
 */
#pragma once
#include "python.h"

/* Adds the type to the module. Returns 0, or -1 with an exception set. */
int private_add(PyObject *module);
