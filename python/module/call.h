/*
 * A call of libfsdp that may wait. Other Python threads run meanwhile, and the
 * wait ends if a signal handler raises an exception. It is used like this:
 *
 *     if (call_begin(&call) < 0)
 *             return NULL;
 *     r = fsdp_...();
 *     call_end(&call);
 *     if (r < 0)
 *             return errors_raise(r);
 *
 * If the call is successful although a handler has raised an exception, it
 * returns its result, and the interpreter raises the exception after that.
 */
#pragma once
#include "python.h"
#include <stdatomic.h>
#include <stdbool.h>

enum call_state { CALL_OUTSIDE, CALL_WAITING, CALL_ENDING, CALL_IN_HANDLER };

struct call {
	PyThreadState *thread;
	/* The thread's state before call_begin_end(). */
	enum call_state outer;
};

/* Returns whether this is a signal handler that interrupted another call of
 * libfsdp on the same thread. libfsdp does not allow a second call then. */
bool call_is_in_handler(void);
/* Returns -1 with an exception set if it is one. */
int call_check(void);
/* Does the same check, and then lets other threads run. */
int call_begin(struct call *call);
void call_end(struct call *call);
/* Raises what a handler has raised in the last call, and returns whether there
 * was anything. */
bool call_raise(void);

/* Does the same for a call that ends an object, also in its destructor, where
 * nothing may be raised: Ctrl-C ends the wait, and the interpreter runs its
 * handler after the destructor. */
void call_begin_end(struct call *call);
void call_end_end(struct call *call);

/* Between call_begin() and call_end(), sets a flag by which another thread can
 * interrupt the call (-EINTR) without an exception. NULL removes the flag; no
 * flag is set at the beginning. */
void call_until(const atomic_bool *is_aborted);

/* This is fsdp_connect_options.interrupted: it runs the handlers of Python's
 * signals. Outside of such calls it returns 0, since an exception could not be
 * raised there. */
int call_is_interrupted(void *data);
