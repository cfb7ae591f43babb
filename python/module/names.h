/*
 * Names as Python passes them in an argument, as borrowed C strings.
 */
#pragma once
#include "python.h"
#include <stddef.h>

/* Returns NULL with an exception set if `name` is not a str, or contains a
 * NUL. */
const char *name_of(PyObject *name);

struct names {
	PyObject *tuple; /* owns the strings */
	const char **items;
	size_t n;
};

/* Reads an iterable of str. Returns 0, or -1 with an exception set. */
int names_open(struct names *ret, PyObject *iterable);
void names_close(struct names *names);
