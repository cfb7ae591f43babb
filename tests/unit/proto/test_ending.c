/*
 * Tests which processes count as ending. A process that can still run must not.
 */
#include "proto/ending.h"
#include "tests/lib/check.h"
#include "tests/lib/ending.h"
#include "tests/lib/patience.h"
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

TestSuite(ending, .timeout = 300);

static int pipe_[2];

static void tell(int value)
{
	cr_assert(
		eq(i64, write(pipe_[1], &value, sizeof(value)), sizeof(value)));
}

static int hear(void)
{
	int value = -1;

	cr_assert(
		eq(i64, read(pipe_[0], &value, sizeof(value)), sizeof(value)));
	return value;
}

static pid_t start(void (*be)(void))
{
	pid_t pid;

	cr_assert(zero(int, pipe(pipe_)));
	pid = fork();
	cr_assert(ge(int, pid, 0));
	if (pid > 0)
		return pid;
	/* The child has CTest's pipe. CTest would wait for it if this process
	 * failed. */
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	be();
	for (;;)
		pause();
}

static void end(pid_t pid)
{
	kill(pid, SIGKILL);
	cr_assert(eq(int, waitpid(pid, NULL, 0), pid));
}

static bool has_ended(int pidfd, int timeout_ms)
{
	struct pollfd poll_fd = {.fd = pidfd, .events = POLLIN};

	return poll(&poll_fd, 1, timeout_ms) > 0;
}

static void be_plain(void)
{
	tell(0);
}

static void be_with_thread(void)
{
	tell(ending_thread());
}

Test(ending, is_seen_before_the_pidfd_reports_the_end)
{
	pid_t pid = start(be_with_thread), thread = hear();
	int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);

	cr_assert(not(process_is_ending(pid)));
	ending_begin(pid, thread);
	cr_assert(not(has_ended(pidfd, 0)));
	ending_end(thread);
	cr_assert(has_ended(pidfd, PATIENCE_MS));
	cr_assert(eq(int, waitpid(pid, NULL, 0), pid));
	cr_assert(not(process_is_ending(pid)), "nobody has this number");
	close(pidfd);
}

Test(ending, is_not_seen_of_a_process_that_runs_or_is_stopped)
{
	pid_t pid = start(be_plain);

	(void)hear();
	cr_assert(not(process_is_ending(getpid())));
	cr_assert(not(process_is_ending(pid)));
	cr_assert(zero(int, kill(pid, SIGSTOP)));
	cr_assert(eq(int, waitpid(pid, NULL, WUNTRACED), pid));
	cr_assert(not(process_is_ending(pid)));
	end(pid);
}

/* --- only some threads have exited --------------------------------------- */

static void lose_first_thread(void)
{
	tell(ending_thread());
	syscall(SYS_exit, 0);
}

/* Read the first line of this file of the process in /proc. */
static void read_line(pid_t pid, const char *name, char ret[512])
{
	char path[64];
	FILE *file;

	(void)snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, name);
	file = fopen(path, "re");
	cr_assert(ne(ptr, file, NULL));
	cr_assert(ne(ptr, fgets(ret, 512, file), NULL));
	(void)fclose(file);
}

static bool is_zombie(pid_t pid)
{
	char line[512];

	read_line(pid, "stat", line);
	return strstr(line, ") Z ") != NULL;
}

Test(ending, is_not_seen_of_a_process_that_only_lost_its_first_thread)
{
	pid_t pid = start(lose_first_thread);

	(void)hear();
	while (!is_zombie(pid))
		cr_assert(not(process_is_ending(pid)));
	cr_assert(not(process_is_ending(pid)));
	end(pid);
}

/* A process that is exempt from the OOM killer has a score of 0 also while it
 * runs, so its score does not show that it is ending. */
Test(ending, is_not_seen_of_a_process_exempt_from_the_oom_killer)
{
	char path[64];
	pid_t pid = start(lose_first_thread);
	FILE *file;

	(void)hear();
	while (!is_zombie(pid))
		sched_yield();
	(void)snprintf(path, sizeof(path), "/proc/%d/oom_score_adj", (int)pid);
	file = fopen(path, "we");
	if (!file || fputs("-1000", file) < 0 || fclose(file) != 0)
		cr_log_info("only a privileged process can be exempt");
	cr_assert(not(process_is_ending(pid)));
	end(pid);
}

/* --- vfork() ------------------------------------------------------------- */

static _Atomic pid_t vforked;

static void *be_vforking(void *data)
{
	(void)data;
	if (vfork() == 0) {
		vforked = getpid();
		for (;;)
			pause();
	}
	return NULL;
}

static void be_beside_vfork(void)
{
	pthread_t thread;

	pthread_create(&thread, NULL, be_vforking, NULL);
	while (vforked == 0)
		sched_yield();
	tell(vforked);
}

/* The score of such a process is 0, too. */
Test(ending, is_not_seen_of_a_child_of_vfork)
{
	pid_t pid = start(be_beside_vfork), child = hear();

	cr_assert(not(process_is_ending(child)));
	cr_assert(not(process_is_ending(pid)));
	kill(child, SIGKILL);
	end(pid);
}

/* --- execve() ------------------------------------------------------------ */

static void *exec_sleep(void *data)
{
	(void)data;
	execl("/bin/sleep", "sleep", "1000", NULL);
	_exit(1);
}

/* The process gets a new address space, and the thread gets the number of the
 * first thread. */
static void be_exec(void)
{
	pthread_t thread;

	tell(0);
	pthread_create(&thread, NULL, exec_sleep, NULL);
}

static bool is_sleep(pid_t pid)
{
	char line[512];

	read_line(pid, "comm", line);
	return strcmp(line, "sleep\n") == 0;
}

Test(ending, is_not_seen_of_a_process_that_executes_another_program)
{
	for (int i = 0; i < 20; i++) {
		pid_t pid = start(be_exec);

		(void)hear();
		while (!is_sleep(pid))
			cr_assert(not(process_is_ending(pid)));
		cr_assert(not(process_is_ending(pid)));
		end(pid);
		close(pipe_[0]);
		close(pipe_[1]);
	}
}
