/*
 * What every entry point of the driver does first and last.
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
 * It refuses forked children, the time after exit has begun and host functions
 * of streams; counts; does what FAKECUDA_FAIL says; and takes the lock.
 *
 * With FAKECUDA_COUNT=1, $FAKECUDA_DIR/calls.PID has a line for each function
 * (without "cu" and version) and for what is listed in enum call_note:
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
	NOTE_CONTEXTS = N_CALLS, /* made */
	NOTE_QUEUES,             /* of each device */
	NOTE_MPS,       /* 1: there was a daemon of MPS to connect to */
	NOTE_PINNED_IN, /* copies of pinned memory to a device that are done */
	NOTE_NCCL,      /* calls of NCCL's double */
	N_COUNTS,
};

/* Without the lock, and before cuInit() too. */
CUresult call_begin_bare(enum call call);
/* After cuInit(). */
CUresult call_begin(enum call call);
/* With a current context without error. */
CUresult call_begin_context(enum call call, struct context **ret);
/* Gives back `result`. Not after call_begin_bare(). */
CUresult call_end(CUresult result);

/* Without "cu" and version; NULL past the last. */
const char *call_name(unsigned int call);

/* Count a thing that is no call. */
void call_note(enum call_note note);
