/*
 * fsdp._fsdp.Client: a connection. fsdp.Client adds in Python what needs no
 * speed.
 */
#pragma once
#include "link.h"
#include "python.h"

struct call;

/* The connection of a Client that is not closed, with a use of it for the
 * caller. NULL, with an exception. */
struct link *client_use(PyObject *self);

/* The same, and call_begin(). */
struct link *client_enter(PyObject *self, struct call *call);

/* Adds the type to the module; -1 with an exception. */
int client_add(PyObject *module);
