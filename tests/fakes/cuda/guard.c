/*
 * The guard consists of one protection key for all device memory, and of signal
 * handlers that leave bad work by siglongjmp(). A thread starts with the rights
 * of key 0 only, so threads that the fake did not start have no access. A
 * handler starts without rights, and leaving it by a jump does not restore
 * them.
 */
#include "tests/fakes/cuda/guard.h"
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* They are static, because a handler may be the first to use them in its
 * thread. */
#define THREAD_STATIC static __thread __attribute__((tls_model("initial-exec")))

/* target for bad work; NULL while no work runs */
THREAD_STATIC sigjmp_buf *escape;
THREAD_STATIC CUresult escaped; /* result of the bad work */

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
	/* The fault is not that of a stream. It is repeated for the previous
	 * handler. */
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
