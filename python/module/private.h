/*
 * fsdp._fsdp.Private(tensor): the elements of a tensor of a bundle as bytes
 * that this process may change, by the buffer protocol. Only the pages that it
 * writes are copied. It has a hold of its own, so that the broker goes on to
 * count the memory. EOPNOTSUPP: the memory may change, and must be copied.
 */
#pragma once
#include "python.h"

/* Adds the type to the module; -1 with an exception. */
int private_add(PyObject *module);
