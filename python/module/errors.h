/*
 * Exceptions: fsdp._errors has the classes, and maps errnos to them.
 */
#pragma once
#include "python.h"

/* Raises the exception for `r`, which libfsdp has returned, with libfsdp's
 * message. After -EINTR the exception of a signal handler is kept. Returns
 * NULL. */
void *errors_raise(int r);

/* Does the same with a text of ours. */
void *errors_raise_text(int r, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
