/*
 * The calling thread's last error. It is thread-local, so that no lock is
 * needed, and a message cannot change while its thread reads it.
 */
#include "client/error.h"
#include "client/fsdp.h"

_Thread_local struct error error_last;

const char *fsdp_error(void)
{
	return error_last.msg;
}
