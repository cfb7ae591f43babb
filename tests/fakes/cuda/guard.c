/*
 * The guard: one protection key for all device memory, and signal handlers
 * that leave bad work by siglongjmp().
 *
 * A thread's rights start as "no key but 0"; so threads that the double did not
 * start have none. A handler is entered without rights, and leaving it by a
 * jump does not bring them back.
 */
#include "tests/fakes/cuda/guard.h"
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Static, because a handler may be the first to look in its thread. */
#define THREAD_STATIC static __thread __attribute__((tls_model("initial-exec")))

THREAD_STATIC sigjmp_buf *escape; /* where bad work goes; NULL: none runs */
THREAD_STATIC CUresult escaped;   /* why it went there */

static int key = -1;
static struct sigaction old_segv, old_bus;

static void explain(const siginfo_t *info)
{
	static const char text[] =
		"fakecuda: the CPU touches device memory; use a copy\n";

	if (info->si_code == SEGV_PKUERR)
		(void)!write(STDERR_FILENO, text, sizeof(text) - 1);
}

static void on_fault(int signal, siginfo_t *info, void *context)
{
	(void)context;
	if (escape)
		guard_trap(CUDA_ERROR_ILLEGAL_ADDRESS);
	/* Not ours: it happens again, for whoever was there before. */
	explain(info);
	sigaction(signal, signal == SIGBUS ? &old_bus : &old_segv, NULL);
}

void guard_open(void)
{
	struct sigaction action = {
		.sa_sigaction = on_fault,
		.sa_flags = SA_SIGINFO | SA_NODEFER,
	};

	key = pkey_alloc(0, PKEY_DISABLE_ACCESS);
	sigemptyset(&action.sa_mask);
	sigaction(SIGSEGV, &action, &old_segv);
	sigaction(SIGBUS, &action, &old_bus);
}

bool guard_has_keys(void)
{
	return key >= 0;
}

int guard_protect(void *address, size_t size, int protection)
{
	return pkey_mprotect(address, size, protection, key);
}

void guard_allow(bool is_allowed)
{
	if (key >= 0)
		pkey_set(key, is_allowed ? 0 : PKEY_DISABLE_ACCESS);
}

CUresult guard_run(CUresult (*fn)(void *), void *data)
{
	sigjmp_buf here;
	CUresult r;

	if (sigsetjmp(here, 1) == 0) {
		escape = &here;
		r = fn(data);
	} else {
		guard_allow(true);
		r = escaped;
	}
	escape = NULL;
	return r;
}

void guard_trap(CUresult error)
{
	escaped = error;
	siglongjmp(*escape, 1);
}
