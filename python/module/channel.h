/*
 * Channels: fsdp._fsdp.Port is one role of this process in a channel, and
 * fsdp._fsdp.Item one of its buffers, by the buffer protocol. What is made from
 * an item (a memoryview, an array) keeps it, and it keeps the port: so memory
 * that Python shows is neither given back nor unmapped, also after close().
 * fsdp._channel has the class that users see.
 */
#pragma once
#include "python.h"

/* Client._channel(name, role, capacity, n_slots, mode, timeout_ms): a Port. */
PyObject *channel_open(PyObject *client, PyObject *args);

/* Adds the types to the module; -1 with an exception. */
int channel_add(PyObject *module);
