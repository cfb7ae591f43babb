/*
 * fsdp._fsdp.Client is a connection. fsdp.Client extends it in Python by
 * everything that need not be fast.
 */
#pragma once
#include "link.h"
#include "python.h"

struct call;

/* Returns the connection of a Client, with a use of it for the caller. Returns
 * NULL with an exception set if the Client is closed. */
struct link *client_use(PyObject *self);

/* Does the same, and then call_begin(). */
struct link *client_enter(PyObject *self, struct call *call);

/* Adds the type to the module. Returns 0, or -1 with an exception set. */
int client_add(PyObject *module);
