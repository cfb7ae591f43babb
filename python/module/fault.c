#include "fault.h"
#include "range.h"
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct sigaction previous;

static void say(const char *text)
{
	/* If this fails, there is no other way to report the fault. */
	ssize_t n = write(STDERR_FILENO, text, strlen(text));

	(void)n;
}

/* The memory of a tensor that is in use is only missing in a forked child. */
static void explain(const char *name, bool is_missing)
{
	say(is_missing ? "fsdp: cannot use the tensor "
		       : "fsdp: cannot write to the tensor ");
	say(*name ? name : "(it has no name)");
	say(is_missing ? ": this process was forked and has not inherited its "
			 "memory; get it by its name here, with a connection "
			 "of this process\n"
		       : ": it is published, and so read-only here; write to a "
			 "clone(), or to torch(private=True)\n");
}

/* The kernel reads the signal set before it refuses the number -1, and a signal
 * handler may call this. */
static bool is_readable(const void *address)
{
	uintptr_t set = (uintptr_t)address & ~(uintptr_t)7;

	return syscall(SYS_rt_sigprocmask, -1, set, NULL, 8) == 0 ||
	       errno != EFAULT;
}

static void on_fault(int number, siginfo_t *info, void *context)
{
	const char *name = range_name(info->si_addr);

	(void)context;
	if (name)
		explain(name, !is_readable(info->si_addr));
	/* The handler returns, the store is repeated and faults again, and the
	 * previous handler runs. */
	sigaction(SIGSEGV, &previous, NULL);
	/* Another process sent the signal by kill(), so it is repeated. */
	if (info->si_code <= 0)
		(void)raise(number);
}

PyObject *fault_watch(PyObject *module, PyObject *none)
{
	struct sigaction action = {.sa_sigaction = on_fault,
				   .sa_flags = SA_SIGINFO | SA_ONSTACK};
	static bool is_watching;

	(void)module;
	(void)none;
	if (!is_watching) {
		sigemptyset(&action.sa_mask);
		if (sigaction(SIGSEGV, &action, &previous) < 0)
			return PyErr_SetFromErrno(PyExc_OSError);
		is_watching = true;
	}
	Py_RETURN_NONE;
}
