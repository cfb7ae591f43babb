/*
 * The calling thread's last error: thread-local, so that no lock is needed and
 * a sentence cannot change while its thread reads it.
 */
#include "client/error.h"
#include "client/fsdp.h"

static _Thread_local struct error last;

struct error *error_of_thread(void)
{
	return &last;
}

const char *fsdp_error(void)
{
	return last.msg;
}
