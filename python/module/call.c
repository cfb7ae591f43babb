#include "call.h"

/* The state of the call that this thread is in. */
static _Thread_local enum { OUTSIDE, WAITING, IN_HANDLER } state;
static _Thread_local const atomic_bool *aborted;

int call_check(void)
{
	if (state != IN_HANDLER)
		return 0;
	PyErr_SetString(PyExc_RuntimeError,
			"a signal handler called fsdp while it interrupted "
			"another call of fsdp; set a flag there, and call "
			"later");
	return -1;
}

int call_begin(struct call *call)
{
	if (call_check() < 0)
		return -1;
	call->thread = PyEval_SaveThread();
	state = WAITING;
	return 0;
}

void call_end(struct call *call)
{
	state = OUTSIDE;
	PyEval_RestoreThread(call->thread);
}

void call_until(const atomic_bool *is_aborted)
{
	aborted = is_aborted;
}

int call_is_interrupted(void *data)
{
	PyGILState_STATE gil;
	int r;

	(void)data;
	if (state != WAITING)
		return 0;
	if (aborted && atomic_load(aborted))
		return -1;
	gil = PyGILState_Ensure();
	state = IN_HANDLER;
	r = PyErr_CheckSignals();
	state = WAITING;
	PyGILState_Release(gil);
	return r;
}
