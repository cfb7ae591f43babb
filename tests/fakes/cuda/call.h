/*
 * Every entry point of the driver begins and ends with these functions.
 *
 *	CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
 *	{
 *		CUresult r = call_begin(CALL_MemRelease);
 *
 *		if (r)
 *			return r;
 *		...
 *		return call_end(r);
 *	}
 *
 * call_begin() refuses forked children, calls after exit has begun, and host
 * functions of streams; counts; obeys FAKECUDA_FAIL; and takes the lock.
 *
 * With FAKECUDA_COUNT=1, $FAKECUDA_DIR/calls.PID has a line for each function
 * (without "cu" and version) and for each event of enum call_note:
 * "MemCreate <tab> 17". It is up to date at any time, also after SIGKILL.
 */
#pragma once
#include "cuda/driver_symbols.h"
#include "tests/fakes/cuda/api.h"

struct context;

enum call {
#define CALL_NUMBER(name) CALL_##name,
	DRIVER_SYMBOLS(CALL_NUMBER) DRIVER_OPTIONAL_SYMBOLS(CALL_NUMBER)
#undef CALL_NUMBER
		N_CALLS,
};

enum call_note {
	NOTE_CONTEXTS = N_CALLS, /* contexts that were made */
	NOTE_QUEUES,             /* hardware queues of each device */
	NOTE_MPS,                /* 1 if a daemon of MPS was found */
	NOTE_PINNED_IN, /* finished copies of pinned memory to a device */
	NOTE_NCCL,      /* calls of the fake NCCL */
	N_COUNTS,
};

/* Begins a call without the lock, which is allowed before cuInit(), too. */
CUresult call_begin_bare(enum call call);
/* Begins a call that requires cuInit(). */
CUresult call_begin(enum call call);
/* Begins a call that requires a current context without error. */
CUresult call_begin_context(enum call call, struct context **ret);
/* Returns `result`. Do not call it after call_begin_bare(). */
CUresult call_end(CUresult result);

/* Returns the name without "cu" and version, or NULL after the last. */
const char *call_name(unsigned int call);
/* Returns the name of the last function that this thread called. For all
 * functions of the fake NCCL it is "NCCL". */
const char *call_current(void);

/* Counts an event that is not a call. */
void call_note(enum call_note note);
