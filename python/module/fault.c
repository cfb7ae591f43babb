#include "fault.h"
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define N_RANGES 4096

/* The handler reads it at any moment, so it has no lock and is never freed. */
struct fault_range {
	_Atomic uintptr_t start; /* 0: unused; 1: being filled */
	uintptr_t end;
	char name[64]; /* its beginning; "": none */
};

static struct fault_range ranges[N_RANGES];
static _Atomic uint32_t next; /* where to look for an unused one */

static bool range_take(struct fault_range *range)
{
	uintptr_t unused = 0;

	return atomic_compare_exchange_strong(&range->start, &unused, 1);
}

struct fault_range *fault_range_new(const void *start, size_t size,
				    const char *name)
{
	for (uint32_t i = 0; i < N_RANGES; i++) {
		struct fault_range *range =
			&ranges[atomic_fetch_add(&next, 1) % N_RANGES];

		if (!range_take(range))
			continue;
		range->end = (uintptr_t)start + size;
		snprintf(range->name, sizeof(range->name), "%s", name);
		atomic_store(&range->start, (uintptr_t)start);
		return range;
	}
	return NULL;
}

void fault_range_end(struct fault_range *range)
{
	atomic_store(&range->start, 0);
}

/* --- the handler -----------------------------------------------------------
 */

static struct sigaction previous;

static const struct fault_range *find(const void *address)
{
	uintptr_t at = (uintptr_t)address;

	for (uint32_t i = 0; i < N_RANGES; i++) {
		uintptr_t start = atomic_load(&ranges[i].start);

		if (start > 1 && at >= start && at < ranges[i].end)
			return &ranges[i];
	}
	return NULL;
}

static void say(const char *text)
{
	/* There is nobody to tell that this failed. */
	ssize_t n = write(STDERR_FILENO, text, strlen(text));

	(void)n;
}

static void on_fault(int number, siginfo_t *info, void *context)
{
	const struct fault_range *range = find(info->si_addr);

	(void)context;
	if (range) {
		say("fsdp: cannot write to the tensor ");
		say(*range->name ? range->name : "(it has no name)");
		say(": it is published, and so read-only here; write to a "
		    "clone(), or to torch(private=True)\n");
	}
	/* The store is repeated, faults again, and meets the other handler. */
	sigaction(SIGSEGV, &previous, NULL);
	if (info->si_code <= 0) /* It was no store, but somebody's kill(). */
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
