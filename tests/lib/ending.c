#include "tests/lib/ending.h"
#include "proto/ending.h"
#include "tests/lib/check.h"
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void *wait_for_kill(void *data)
{
	atomic_store((_Atomic pid_t *)data, (pid_t)syscall(SYS_gettid));
	for (;;)
		pause();
	return NULL;
}

pid_t ending_thread(void)
{
	static _Atomic pid_t number;
	pthread_t thread;

	if (pthread_create(&thread, NULL, wait_for_kill, (void *)&number) != 0)
		return -1;
	while (atomic_load(&number) == 0)
		sched_yield();
	return atomic_load(&number);
}

void ending_begin(pid_t pid, pid_t thread)
{
	cr_assert(zero(i64, ptrace(PTRACE_SEIZE, thread, NULL, NULL)));
	cr_assert(zero(int, kill(pid, SIGKILL)));
	while (!process_is_ending(pid))
		sched_yield();
}

void ending_end(pid_t thread)
{
	cr_assert(eq(int, waitpid(thread, NULL, __WALL), thread));
}
