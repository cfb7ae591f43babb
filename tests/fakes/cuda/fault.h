/*
 * Calls that fail because a test wants it:
 *
 *   FAKECUDA_FAIL=FUNCTION:N:WHAT[,...]
 *
 * FUNCTION with or without "cu", without version; N is the number of the call
 * in each process, from 1, or N+ for it and all later ones. WHAT is
 *
 *   2          the result, for example; nothing is done
 *   kill       SIGKILL, before anything is done
 *   sleep=50   milliseconds of delay, then it is done
 *   lost       the current context's device (else the first) falls off the
 *              bus, for all processes
 *   sticky=700 a sticky error of the current context, and the result
 *   fault=719  the same, but found only by the next call, as an error of work
 *              under way is: this one succeeds
 */
#pragma once
#include "tests/fakes/cuda/call.h"

/* What becomes of the nth call, without the lock. Success: go on. */
CUresult fault_inject(enum call call, unsigned int n);
