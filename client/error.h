/*
 * The calling thread's last error, which fsdp_error() returns.
 *
 * Public functions pass it down as their `err`, so the function that knows the
 * cause writes the sentence, once, and only on failure.
 */
#pragma once
#include "proto/error.h"

extern _Thread_local struct error error_last;

static inline struct error *error_of_thread(void)
{
	return &error_last;
}
