/*
 * Names, as an argument of Python has them: borrowed C strings.
 */
#pragma once
#include "python.h"
#include <stddef.h>

/* NULL, with an exception: no str, or it contains a NUL. */
const char *name_of(PyObject *name);

struct names {
	PyObject *tuple; /* keeps the strings */
	const char **items;
	size_t n;
};

/* Of an iterable of str. -1, with an exception. */
int names_open(struct names *ret, PyObject *iterable);
void names_close(struct names *names);
