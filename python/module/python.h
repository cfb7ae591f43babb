/*
 * This header selects Python's limited API, so that one binary works with 3.11
 * and later.
 */
#pragma once
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

/* Converts a function for a table of methods or slots. */
#define METHOD(function) ((PyCFunction)(void (*)(void))(function))
