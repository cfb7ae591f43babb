/*
 * Python's limited API: one file of machine code serves 3.11 and later.
 */
#pragma once
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

/* What a table of methods and slots wants. */
#define METHOD(function) ((PyCFunction)(void (*)(void))(function))
