/*
 * Tests which calls the sandbox refuses, in which threads and programs, and
 * what still works. Each test is a process of its own, because the sandbox
 * cannot be left.
 */
#include "proto/error.h"
#include "sandbox/sandbox.h"
#include "tests/lib/check.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

TestSuite(sandbox, .timeout = 300);

static void enter(enum sandbox sandbox)
{
	struct error err = ERROR_NULL;
	int r = sandbox_enter(sandbox, &err);

	if (r == -EOPNOTSUPP)
		cr_skip_test("%s", err.msg);
	cr_assert(zero(int, r), "%s", err.msg);
}

Test(sandbox, is_entered_unless_the_build_or_the_kernel_cannot)
{
	struct error err = ERROR_NULL;
	int r = sandbox_enter(SANDBOX_BROKER, &err);

	if (r == 0)
		cr_expect(eq(str, err.msg, ""));
	else
		cr_expect(eq(int, r, -EOPNOTSUPP), "%s", err.msg);
	cr_expect(eq(int, err.code, r));
}

static int try_call(long call)
{
	return syscall(call, 0, 0, 0, 0, 0, 0) < 0 ? errno : 0;
}

/* Without the sandbox, most of these would fail with another error. */
static const long dangerous[] = {
	SYS_bpf,
	SYS_init_module,
	SYS_io_uring_setup,
	SYS_kexec_load,
	SYS_keyctl,
	SYS_mount,
	SYS_perf_event_open,
	SYS_process_vm_readv,
	SYS_process_vm_writev,
	SYS_ptrace,
	SYS_setns,
	SYS_unshare,
	SYS_userfaultfd,
};

static void expect_all_refused(void)
{
	for (size_t i = 0; i < sizeof(dangerous) / sizeof(*dangerous); i++)
		cr_expect(eq(int, try_call(dangerous[i]), EPERM),
			  "system call %ld", dangerous[i]);
}

Test(sandbox, of_a_loop_refuses_only_io_uring)
{
	enter(SANDBOX_LOOP);
	cr_expect(eq(int, try_call(SYS_io_uring_setup), EPERM));
	cr_expect(eq(int, try_call(SYS_symlinkat), EFAULT));
	cr_expect(zero(int, try_call(SYS_personality)));
}

Test(sandbox, of_the_broker_refuses_calls_that_it_does_not_need)
{
	enter(SANDBOX_BROKER);
	expect_all_refused();
}

Test(sandbox, of_a_broker_with_a_driver_refuses_them_too)
{
	enter(SANDBOX_BROKER_DEVICES);
	expect_all_refused();
	/* This call is not on the list for host memory, but a driver may make
	 * it. */
	cr_expect(eq(int, try_call(SYS_symlinkat), EFAULT));
}

Test(sandbox, of_the_broker_allows_only_calls_on_its_list)
{
	enter(SANDBOX_BROKER);
	cr_expect(eq(int, try_call(SYS_symlinkat), ENOSYS));
	cr_expect(eq(int, try_call(SYS_setuid), ENOSYS));
	cr_expect(eq(int, try_call(SYS_mknodat), ENOSYS));
}

Test(sandbox, of_the_broker_allows_memory_sockets_and_devices)
{
	int fds[2];

	enter(SANDBOX_BROKER);
	cr_expect(ge(int, memfd_create("x", MFD_CLOEXEC), 0));
	cr_expect(zero(int, socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fds)));
	cr_expect(ge(int, open("/dev/null", O_RDWR), 0));
	/* The filter permits the call. The device refuses the unknown
	 * request. */
	cr_expect(eq(int, try_call(SYS_ioctl), ENOTTY));
}

/* fsdp-worker sets the CPUs of its threads in this way. */
Test(sandbox, of_the_broker_allows_threads_to_set_their_cpus)
{
	cpu_set_t cpus;

	enter(SANDBOX_BROKER);
	cr_assert(zero(int, pthread_getaffinity_np(pthread_self(), sizeof(cpus),
						   &cpus)));
	cr_expect(zero(int, pthread_setaffinity_np(pthread_self(), sizeof(cpus),
						   &cpus)));
}

/* Without the sandbox, this would make a child in the namespace. */
static int try_clone(unsigned long flags)
{
	long pid = syscall(SYS_clone, flags | SIGCHLD, 0, 0, 0, 0);

	if (pid == 0)
		_exit(0);
	if (pid > 0)
		waitpid((pid_t)pid, NULL, 0);
	return pid < 0 ? errno : 0;
}

static const unsigned long namespaces[] = {
	CLONE_NEWCGROUP, CLONE_NEWIPC,  CLONE_NEWNET, CLONE_NEWNS,
	CLONE_NEWPID,    CLONE_NEWUSER, CLONE_NEWUTS,
};

static void expect_no_namespaces(int error)
{
	cr_expect(zero(int, try_clone(0)));
	for (size_t i = 0; i < sizeof(namespaces) / sizeof(*namespaces); i++)
		cr_expect(eq(int, try_clone(namespaces[i]), error), "%#lx",
			  namespaces[i]);
	cr_expect(eq(int, try_call(SYS_clone3), ENOSYS));
}

Test(sandbox, of_the_broker_allows_children_only_without_namespaces)
{
	enter(SANDBOX_BROKER);
	expect_no_namespaces(ENOSYS);
}

Test(sandbox, with_a_driver_allows_children_only_without_namespaces)
{
	enter(SANDBOX_BROKER_DEVICES);
	expect_no_namespaces(EPERM);
}

Test(sandbox, of_a_worker_with_a_driver_keeps_namespaces_away_too)
{
	enter(SANDBOX_BROKER_DEVICES);
	enter(SANDBOX_WORKER_DEVICES);
	expect_no_namespaces(EPERM);
}

/* Without the sandbox, these would fail with another error. */
static const long programs[] = {SYS_execve, SYS_execveat};
static const long servers[] = {SYS_accept, SYS_accept4, SYS_bind, SYS_listen};

static void expect_errors(const long *calls, size_t n, int error)
{
	for (size_t i = 0; i < n; i++)
		cr_expect(eq(int, try_call(calls[i]), error), "system call %ld",
			  calls[i]);
}

Test(sandbox, of_a_worker_is_entered_within_that_of_its_broker)
{
	enter(SANDBOX_BROKER);
	enter(SANDBOX_WORKER);
	expect_errors(programs, 2, EPERM);
	expect_errors(servers, 4, EPERM);
	cr_expect(ge(int, memfd_create("x", MFD_CLOEXEC), 0));
	cr_expect(eq(int, try_call(SYS_symlinkat), ENOSYS));
}

/* NCCL calls bind() and listen(). */
Test(sandbox, of_a_worker_with_a_driver_allows_it_to_accept_connections)
{
	enter(SANDBOX_BROKER_DEVICES);
	enter(SANDBOX_WORKER_DEVICES);
	expect_errors(programs, 2, EPERM);
	expect_errors(servers, 4, ENOTSOCK);
}

static void *do_nothing(void *data)
{
	return data;
}

/* clone3 cannot be filtered by its flags, so libraries must use clone. */
static bool can_fork(void)
{
	pid_t pid = fork();

	if (pid == 0)
		_exit(0);
	if (pid < 0)
		return false;
	waitpid(pid, NULL, 0);
	return true;
}

Test(sandbox, of_a_worker_without_a_driver_allows_threads_but_no_fork)
{
	pthread_t thread;

	enter(SANDBOX_WORKER);
	cr_expect(not(can_fork()));
	cr_expect(eq(int, errno, EPERM));
	cr_expect(eq(int, try_call(SYS_clone3), ENOSYS));
	cr_assert(zero(int, pthread_create(&thread, NULL, do_nothing, NULL)));
	cr_expect(zero(int, pthread_join(thread, NULL)));
}

Test(sandbox, of_a_worker_with_a_driver_allows_threads_and_forks)
{
	pthread_t thread;

	enter(SANDBOX_BROKER_DEVICES);
	enter(SANDBOX_WORKER_DEVICES);
	cr_expect(can_fork());
	cr_assert(zero(int, pthread_create(&thread, NULL, do_nothing, NULL)));
	cr_expect(zero(int, pthread_join(thread, NULL)));
}

Test(sandbox, applies_to_programs_that_are_started_later)
{
	int status;

	enter(SANDBOX_BROKER);
	status = system("grep -q '^Seccomp:.2$' /proc/self/status && "
			"grep -q '^NoNewPrivs:.1$' /proc/self/status");
	cr_expect(zero(int, status));
}

static sem_t is_entered;

static void *wait_and_try(void *data)
{
	int *error = data;

	sem_wait(&is_entered);
	*error = try_call(SYS_unshare);
	return NULL;
}

Test(sandbox, applies_to_threads_that_already_run)
{
	pthread_t thread;
	int error = 0;

	sem_init(&is_entered, 0, 0);
	cr_assert(
		zero(int, pthread_create(&thread, NULL, wait_and_try, &error)));
	enter(SANDBOX_BROKER);
	sem_post(&is_entered);
	pthread_join(thread, NULL);
	cr_expect(eq(int, error, EPERM));
}

/* Returns what a child in the sandbox of the exporter writes to stderr. */
static void run_exporter(void (*act)(void), char *ret, size_t size)
{
	int fds[2], status;
	ssize_t n;
	pid_t pid;

	cr_assert(zero(int, pipe(fds)));
	pid = fork();
	if (pid == 0) {
		dup2(fds[1], STDERR_FILENO);
		close(fds[1]);
		if (sandbox_enter(SANDBOX_EXPORTER, NULL) < 0)
			_exit(77);
		act();
		_exit(0);
	}
	close(fds[1]);
	n = read(fds[0], ret, size - 1);
	ret[n > 0 ? n : 0] = '\0';
	close(fds[0]);
	cr_assert(eq(int, waitpid(pid, &status, 0), pid));
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
		cr_skip_test("no sandbox in this build");
	cr_assert(zero(int, status));
}

static void call_what_is_not_on_the_list(void)
{
	if (try_call(SYS_getppid) != EPERM)
		_exit(1);
}

Test(sandbox, of_the_exporter_names_the_call_that_it_refuses)
{
	char text[256];

	run_exporter(call_what_is_not_on_the_list, text, sizeof(text));
	cr_expect(strstr(text, "refused the system call ") != NULL, "%s", text);
	cr_expect(strstr(text, "(getppid)") != NULL, "%s", text);
}

static void open_and_write(void)
{
	if (open("/dev/null", O_RDONLY) >= 0 || errno != EPERM)
		_exit(1);
	if (write(STDERR_FILENO, "alive", 5) != 5)
		_exit(2);
}

Test(sandbox, of_the_exporter_refuses_to_open_files_without_a_report)
{
	char text[256];

	run_exporter(open_and_write, text, sizeof(text));
	cr_expect(eq(str, text, "alive"));
}
