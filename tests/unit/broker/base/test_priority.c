#include "broker/base/priority.h"
#include "proto/error.h"
#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static void *read_nice(void *data)
{
	int *ret = data;

	*ret = getpriority(PRIO_PROCESS, 0);
	return NULL;
}

static int nice_of_new_thread(void)
{
	pthread_t thread;
	int nice = -100;

	cr_assert_eq(pthread_create(&thread, NULL, read_nice, &nice), 0);
	pthread_join(thread, NULL);
	return nice;
}

static int nice_of_new_process(void)
{
	int status = 0;
	pid_t pid = fork();

	if (pid == 0)
		_exit(getpriority(PRIO_PROCESS, 0) + 20);
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	cr_assert(WIFEXITED(status));
	return WEXITSTATUS(status) - 20;
}

Test(priority, threads_and_processes_begin_at_0_and_the_caller_keeps_its_own)
{
	struct error err = ERROR_NULL;

	if (setpriority(PRIO_PROCESS, 0, -10) < 0)
		cr_skip("the right to a priority above 0 is needed");
	cr_assert_eq(nice_of_new_thread(), -10);
	cr_assert_eq(priority_keep_own(&err), 0, "%s", err.msg);
	cr_assert_eq(getpriority(PRIO_PROCESS, 0), -10);
	cr_assert_eq(nice_of_new_thread(), 0);
	cr_assert_eq(nice_of_new_process(), 0);
}

Test(priority, one_that_is_lowered_stays_so_everywhere)
{
	struct error err = ERROR_NULL;

	cr_assert_eq(setpriority(PRIO_PROCESS, 0, 5), 0);
	cr_assert_eq(priority_keep_own(&err), 0, "%s", err.msg);
	cr_assert_eq(nice_of_new_thread(), 5);
	cr_assert_eq(nice_of_new_process(), 5);
}
