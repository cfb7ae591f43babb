/*
 * Channels: fsdp._fsdp.Port is one role of this process in a channel, and
 * fsdp._fsdp.Item is one of its buffers, which it shows by the buffer protocol.
 * An object that is made from an item (a memoryview, an array) keeps the item,
 * and the item keeps the port. So memory that Python shows is neither given
 * back nor unmapped, even after close(). fsdp._channel has the class that users
 * see.
 */
#pragma once
#include "python.h"

/* Implements Client._channel(name, role, capacity, n_slots, mode, timeout_ms).
 * Returns a Port. */
PyObject *channel_open(PyObject *client, PyObject *args);

/* Adds the types to the module. Returns 0, or -1 with an exception set. */
int channel_add(PyObject *module);
