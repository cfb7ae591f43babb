#include "call.h"

/* The state of the call that this thread is in. */
static _Thread_local enum call_state state;
static _Thread_local const atomic_bool *aborted;
/* What a signal handler has raised in a call: type, value and traceback. It is
 * kept here, because nothing may be raised while the call goes on, and because
 * the call may be successful nevertheless. */
static _Thread_local PyObject *raised[3];

bool call_is_in_handler(void)
{
	return state == CALL_IN_HANDLER;
}

int call_check(void)
{
	if (!call_is_in_handler())
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
	state = CALL_WAITING;
	return 0;
}

void call_begin_end(struct call *call)
{
	call->outer = state;
	call->thread = PyEval_SaveThread();
	state = CALL_ENDING;
}

void call_end_end(struct call *call)
{
	state = call->outer;
	PyEval_RestoreThread(call->thread);
}

bool call_raise(void)
{
	if (!raised[0])
		return false;
	PyErr_Restore(raised[0], raised[1], raised[2]);
	raised[0] = NULL;
	return true;
}

/* The interpreter calls this, on the thread of signal handlers. */
static int raise_later(void *data)
{
	(void)data;
	return call_raise() ? -1 : 0;
}

void call_end(struct call *call)
{
	state = CALL_OUTSIDE;
	PyEval_RestoreThread(call->thread);
	if (raised[0])
		(void)Py_AddPendingCall(raise_later, NULL);
}

void call_until(const atomic_bool *is_aborted)
{
	aborted = is_aborted;
}

/* Leaves Ctrl-C pending, for the interpreter to handle it later. */
static int is_ctrl_c_pending(void)
{
	PyGILState_STATE gil = PyGILState_Ensure();
	int r = PyOS_InterruptOccurred();

	if (r)
		PyErr_SetInterrupt();
	PyGILState_Release(gil);
	return r;
}

int call_is_interrupted(void *data)
{
	PyGILState_STATE gil;
	int r;

	(void)data;
	if (state == CALL_ENDING)
		return is_ctrl_c_pending();
	if (state != CALL_WAITING)
		return 0;
	if (aborted && atomic_load(aborted))
		return -1;
	if (raised[0]) /* this ends what the call waits for then, too */
		return -1;
	gil = PyGILState_Ensure();
	state = CALL_IN_HANDLER;
	r = PyErr_CheckSignals();
	if (r < 0)
		PyErr_Fetch(&raised[0], &raised[1], &raised[2]);
	state = CALL_WAITING;
	PyGILState_Release(gil);
	return r;
}
