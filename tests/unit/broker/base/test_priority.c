#include "broker/base/priority.h"
#include "proto/error.h"
#include <criterion/criterion.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/syscall.h>
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

/* Returns 0 if the kernel does not report it. The kernel's header of struct
 * sched_attr cannot be combined with pthread.h. */
static uint64_t own_slice_ns(void)
{
	struct {
		uint32_t size, policy;
		uint64_t flags;
		int32_t nice;
		uint32_t priority;
		uint64_t runtime, deadline, period;
	} attr = {0};

	if (syscall(SYS_sched_getattr, 0, &attr, sizeof(attr), 0) < 0)
		return 0;
	return attr.runtime;
}

static void *read_slice(void *data)
{
	uint64_t *ret = data;

	*ret = own_slice_ns();
	return NULL;
}

Test(priority,
     the_main_thread_has_a_short_slice_and_other_threads_the_usual_one)
{
	uint64_t usual_ns = own_slice_ns(), thread_ns = 0;
	struct error err = ERROR_NULL;
	pthread_t thread;

	if (usual_ns == 0)
		cr_skip("a time slice of one thread needs Linux 6.12");
	cr_assert_eq(priority_set(&err), 0, "%s", err.msg);
	cr_assert_lt(own_slice_ns(), usual_ns);
	cr_assert_eq(pthread_create(&thread, NULL, read_slice, &thread_ns), 0);
	pthread_join(thread, NULL);
	cr_assert_eq(thread_ns, usual_ns);
}

Test(priority, another_scheduling_policy_is_kept)
{
	struct sched_param none = {.sched_priority = 0};
	struct error err = ERROR_NULL;

	if (getpriority(PRIO_PROCESS, 0) < 0)
		cr_skip("a priority above 0 ends another policy");
	cr_assert_eq(sched_setscheduler(0, SCHED_BATCH, &none), 0);
	cr_assert_eq(priority_set(&err), 0, "%s", err.msg);
	cr_assert_eq(sched_getscheduler(0), SCHED_BATCH);
}

Test(priority,
     new_threads_and_processes_have_nice_0_and_the_caller_keeps_its_own)
{
	struct error err = ERROR_NULL;

	if (setpriority(PRIO_PROCESS, 0, -10) < 0)
		cr_skip("the right to a priority above 0 is needed");
	cr_assert_eq(nice_of_new_thread(), -10);
	cr_assert_eq(priority_set(&err), 0, "%s", err.msg);
	cr_assert_eq(getpriority(PRIO_PROCESS, 0), -10);
	cr_assert_eq(nice_of_new_thread(), 0);
	cr_assert_eq(nice_of_new_process(), 0);
}

Test(priority, a_lowered_priority_is_kept_and_inherited)
{
	struct error err = ERROR_NULL;

	cr_assert_eq(setpriority(PRIO_PROCESS, 0, 19), 0);
	cr_assert_eq(priority_set(&err), 0, "%s", err.msg);
	cr_assert_eq(nice_of_new_thread(), 19);
	cr_assert_eq(nice_of_new_process(), 19);
}
