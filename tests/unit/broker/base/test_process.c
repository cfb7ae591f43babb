/*
 * Tests whether a client's process is still the same one, has ended, or cannot
 * be seen now.
 */
#include "broker/base/process.h"
#include "proto/failpoint.h"
#include "tests/lib/check.h"
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

TestSuite(process, .timeout = 300);

static uint64_t start_time_of(pid_t pid)
{
	uint64_t start_time = 0;

	cr_assert(zero(int, process_start_time(pid, &start_time, NULL)));
	return start_time;
}

/* Start a child that waits to be killed. Returns its pidfd. */
static pid_t make_child(uint64_t *ret_start_time, int *ret_pidfd)
{
	pid_t pid = fork();

	cr_assert(ge(int, pid, 0));
	while (pid == 0)
		pause();
	*ret_start_time = start_time_of(pid);
	cr_assert(zero(int, process_open(pid, *ret_start_time, ret_pidfd)));
	return pid;
}

static void kill_child(pid_t pid, int pidfd)
{
	struct pollfd poll_fd = {.fd = pidfd, .events = POLLIN};

	cr_assert(zero(int, kill(pid, SIGKILL)));
	cr_assert(eq(int, poll(&poll_fd, 1, -1), 1));
}

Test(process, is_found_by_number_and_start_time)
{
	uint64_t start_time = start_time_of(getpid());
	int pidfd = -1;

	cr_assert(zero(int, process_open(getpid(), start_time, &pidfd)));
	cr_assert(not(process_has_ended(pidfd)));
	cr_assert(
		eq(int, process_open(getpid(), start_time + 1, &pidfd), -ESRCH),
		"the number belongs to another process now");
	close(pidfd);
}

Test(process, that_has_ended_is_not_found_even_before_its_parent_has_waited)
{
	uint64_t start_time;
	int pidfd, other = -1;
	pid_t pid = make_child(&start_time, &pidfd);

	kill_child(pid, pidfd);
	cr_assert(process_has_ended(pidfd));
	cr_assert(eq(int, process_open(pid, start_time, &other), -ESRCH));
	cr_assert(eq(int, waitpid(pid, NULL, 0), pid));
	cr_assert(process_has_ended(pidfd));
	cr_assert(eq(int, process_open(pid, start_time, &other), -ESRCH));
	cr_assert(eq(int, other, -1));
	close(pidfd);
}

Test(process, is_not_taken_for_ended_if_no_descriptor_is_free)
{
	uint64_t start_time = start_time_of(getpid());
	struct rlimit old, none;
	int pidfd = -1, r;

	cr_assert(zero(int, getrlimit(RLIMIT_NOFILE, &old)));
	none = (struct rlimit){0, old.rlim_max};
	setrlimit(RLIMIT_NOFILE, &none);
	r = process_open(getpid(), start_time, &pidfd);
	setrlimit(RLIMIT_NOFILE, &old);
	cr_assert(eq(int, r, -EMFILE));
	cr_assert(eq(int, pidfd, -1));
}

Test(process,
     without_a_pidfd_is_distinguished_from_a_later_process_of_its_number)
{
	uint64_t start_time = start_time_of(getpid());
	int pidfd = -1;

	setenv("FSDP_FAIL_AT", "process.pidfd:*:12", 1);
	if (failpoint_fail("process.pidfd") == 0)
		cr_skip_test("built without FSDP_TEST_POINTS");
	cr_assert(eq(int, process_open(getpid(), start_time, &pidfd), -ENOMEM));
	cr_assert(eq(int, process_open(getpid(), start_time + 1, &pidfd),
		     -ESRCH));
}

Test(process, that_was_killed_is_described_as_killed)
{
	char zombie[PROCESS_END_SIZE], end[PROCESS_END_SIZE];
	uint64_t start_time;
	int pidfd;
	pid_t pid = make_child(&start_time, &pidfd);
	bool is_told;

	kill_child(pid, pidfd);
	cr_assert(process_describe_end(pidfd, pid, zombie));
	cr_assert(eq(str, zombie, (char *)"was killed by signal 9 (Killed)"));
	cr_assert(eq(int, waitpid(pid, NULL, 0), pid));
	is_told = process_describe_end(pidfd, pid, end);
	/* Linux before 6.15 no longer knows how a process ended for which its
	 * parent has waited. */
	cr_assert(eq(str, end, is_told ? zombie : (char *)"has ended"));
	close(pidfd);
	cr_assert(not(process_describe_end(-1, pid, end)));
}

#define N_AWAITED 300

static void *await_child(void *data)
{
	(void)waitpid(*(pid_t *)data, NULL, 0);
	return NULL;
}

/* Returns whether the kernel remembers how a process ended for which its parent
 * has waited. */
static bool is_remembered(void)
{
	char end[PROCESS_END_SIZE];
	uint64_t start_time;
	int pidfd;
	pid_t pid = make_child(&start_time, &pidfd);
	bool is_told;

	kill_child(pid, pidfd);
	(void)await_child(&pid);
	is_told = process_describe_end(pidfd, pid, end);
	close(pidfd);
	return is_told;
}

/* A process must be described even if its parent waits for it at the same
 * time. */
Test(process, that_its_parent_reaps_meanwhile_is_described)
{
	char end[PROCESS_END_SIZE];
	uint64_t start_time;
	pthread_t parent;
	int pidfd;

	if (!is_remembered())
		cr_skip_test("Linux before 6.15 forgets how processes ended");
	for (int i = 0; i < N_AWAITED; i++) {
		pid_t pid = make_child(&start_time, &pidfd);

		cr_assert(zero(
			int, pthread_create(&parent, NULL, await_child, &pid)));
		kill_child(pid, pidfd);
		cr_assert(process_describe_end(pidfd, pid, end), "%d", i);
		(void)pthread_join(parent, NULL);
		close(pidfd);
	}
}

Test(process, that_exited_is_described_as_exited)
{
	char end[PROCESS_END_SIZE];
	struct pollfd poll_fd = {.events = POLLIN};
	int pidfd = -1, go[2];
	pid_t pid;
	char byte;

	cr_assert(zero(int, pipe(go)));
	pid = fork();
	if (pid == 0) {
		close(go[1]);
		(void)!read(go[0], &byte, 1);
		_exit(3);
	}
	cr_assert(zero(int, process_open(pid, start_time_of(pid), &pidfd)));
	close(go[1]);
	poll_fd.fd = pidfd;
	cr_assert(eq(int, poll(&poll_fd, 1, -1), 1));
	cr_assert(process_describe_end(pidfd, pid, end));
	cr_assert(eq(str, end, (char *)"exited with status 3"));
	close(pidfd);
}
