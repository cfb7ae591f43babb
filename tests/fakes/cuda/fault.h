/*
 * Calls that fail because a test demands it:
 *
 *   FAKECUDA_FAIL=FUNCTION:N:WHAT[,...]
 *
 * FUNCTION is a name with or without "cu", without version. N is the number of
 * the call in each process, from 1; N+ means it and all later ones. WHAT is
 *
 *   2          the result, for example; the call does nothing
 *   kill       SIGKILL, before the call does anything
 *   sleep=50   milliseconds of delay, after which the call is done
 *   lost       the current context's device (else the first) falls off the
 *              bus, for all processes
 *   sticky=700 a sticky error of the current context, and the result
 *   fault=719  the same, but this call succeeds and the next one reports the
 *              error, like an error of work that is running
 */
#pragma once
#include "tests/fakes/cuda/call.h"

/* Returns the result of the nth call, without the lock. On success the call
 * continues. */
CUresult fault_inject(enum call call, unsigned int n);
