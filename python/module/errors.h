/*
 * Exceptions: fsdp._errors has the classes, and says which errno is which.
 */
#pragma once
#include "python.h"

/* Raise what libfsdp returned, with its message. After -EINTR the handler's
 * exception stays. Returns NULL. */
void *errors_raise(int r);

/* The same with a text of ours. */
void *errors_raise_text(int r, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
