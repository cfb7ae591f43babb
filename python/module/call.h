/*
 * A call of libfsdp that may wait: other Python threads run meanwhile, and a
 * signal whose handler raises ends the wait.
 *
 *     if (call_begin(&call) < 0)
 *             return NULL;
 *     r = fsdp_...();
 *     call_end(&call);
 *     if (r < 0)
 *             return errors_raise(r);
 */
#pragma once
#include "python.h"
#include <stdatomic.h>
#include <stdbool.h>

struct call {
	PyThreadState *thread;
};

/* -1, with an exception: this is a signal handler that runs within another
 * call of libfsdp on the same thread, which allows no second one. */
int call_check(void);
/* The same, and then other threads run. */
int call_begin(struct call *call);
void call_end(struct call *call);

/* Between the two: another thread may set this flag, which interrupts the call
 * (-EINTR) without an exception. NULL: nobody may, as at the beginning. */
void call_until(const atomic_bool *is_aborted);

/* fsdp_connect_options.interrupted: runs the handlers of Python's signals.
 * Outside of call_begin() and call_end() it returns 0, since nobody there could
 * raise. */
int call_is_interrupted(void *data);
