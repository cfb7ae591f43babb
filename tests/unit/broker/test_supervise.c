/*
 * Tests the supervisor with real processes: a test forks a supervisor, whose
 * children run a small script and report through a pipe.
 */
#include "broker/base/fdstore.h"
#include "broker/supervise.h"
#include "shm/memfd.h"
#include "tests/lib/check.h"
#include "tests/lib/patience.h"
#include "tests/unit/fds_fixture.h"
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sysexits.h>
#include <unistd.h>

/* The test and all its processes share this memory. */
struct shared {
	int n_starts;
	int n_fds[8]; /* open descriptors of each child at its start */
	pid_t child;
	uint64_t sum;
};

static struct shared *shared;
static int listen_pipe[2]; /* replaces the listening socket */

typedef void child_fn(struct fdstore *store);

static void setup(void)
{
	shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	cr_assert(shared != MAP_FAILED);
	cr_assert(zero(int, pipe2(listen_pipe, O_CLOEXEC)));
}

/* Act like a broker at its start: it gets the limit of the process that started
 * the supervisor, and may inherit more descriptors than that. */
static void raise_limit(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
		_exit(94);
	limit.rlim_cur = limit.rlim_max;
	if (setrlimit(RLIMIT_NOFILE, &limit) < 0)
		_exit(94);
}

static void run_child(child_fn *fn)
{
	struct fdstore store = FDSTORE_NULL;

	raise_limit();
	shared->n_fds[shared->n_starts++] = count_fds();
	shared->child = getpid();
	if (fdstore_open(&store, NULL) < 0)
		_exit(99);
	fn(&store);
	_exit(98);
}

/* Start a supervisor in a process of its own. */
static pid_t start(child_fn *fn)
{
	pid_t pid = fork();
	int status = 97, r;

	cr_assert(ge(int, pid, 0));
	if (pid > 0)
		return pid;
	close(STDERR_FILENO);
	open("/dev/null", O_WRONLY);
	r = supervise(listen_pipe[1], &status, NULL);
	if (r == 1)
		run_child(fn);
	_exit(r < 0 ? 96 : status);
}

/* Returns the supervisor's exit status. */
static int finish(pid_t supervisor)
{
	int status = -1;

	cr_assert(eq(int, waitpid(supervisor, &status, 0), supervisor));
	cr_assert(not(zero(int, WIFEXITED(status))));
	return WEXITSTATUS(status);
}

/* Block until a child has written a byte to "listen". */
static void await_child(void)
{
	struct pollfd fd = {.fd = listen_pipe[0], .events = POLLIN};
	char byte;

	cr_assert(eq(int, poll(&fd, 1, PATIENCE_MS), 1));
	cr_assert(eq(long, read(listen_pipe[0], &byte, 1), 1));
}

static void say(struct fdstore *store)
{
	int fd = fdstore_take(store, "listen");

	if (fd < 0 || write(fd, "x", 1) != 1)
		_exit(95);
}

static void exit_well(struct fdstore *store)
{
	(void)store;
	_exit(0);
}

Test(supervise, ends_when_the_broker_does, .init = setup)
{
	cr_expect(zero(int, finish(start(exit_well))));
	cr_expect(eq(int, shared->n_starts, 1));
}

/* Its owner could put a socket in the place of the supervisor's, and would get
 * all memory. */
Test(supervise, makes_nothing_in_a_runtime_directory_of_another_user,
     .init = setup)
{
	char directory[] = "/tmp/fsdpd-test-XXXXXX", events[4096];
	int watch = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);

	if (geteuid() != 0)
		cr_skip_test("only root can give a directory to another user");
	cr_assert(ne(ptr, mkdtemp(directory), NULL));
	cr_assert(zero(int, chown(directory, 65533, 65533)));
	cr_assert(ge(int, inotify_add_watch(watch, directory, IN_CREATE), 0));
	setenv("XDG_RUNTIME_DIR", directory, 1);
	unsetenv("TMPDIR");
	cr_expect(zero(int, finish(start(exit_well))));
	cr_expect(eq(long, read(watch, events, sizeof(events)), -1));
	close(watch);
	rmdir(directory);
}

/* The socket is bound through the descriptor of its directory, which nobody can
 * replace as they can a name. */
Test(supervise, its_directory_may_have_a_longer_name_than_a_socket,
     .init = setup)
{
	char parent[] = "/tmp/fsdpd-test-XXXXXX", directory[160];

	cr_assert(ne(ptr, mkdtemp(parent), NULL));
	snprintf(directory, sizeof(directory), "%s/%0120d", parent, 0);
	cr_assert(zero(int, mkdir(directory, 0700)));
	unsetenv("XDG_RUNTIME_DIR");
	setenv("TMPDIR", directory, 1);
	cr_expect(zero(int, finish(start(exit_well))));
	cr_expect(zero(int, rmdir(directory)), "it was emptied");
	rmdir(parent);
}

static void exit_badly(struct fdstore *store)
{
	(void)store;
	_exit(7);
}

Test(supervise, gives_up_after_five_deaths_in_a_row, .init = setup)
{
	cr_expect(eq(int, finish(start(exit_badly)), 7));
	cr_expect(eq(int, shared->n_starts, 5));
}

static void lack_memory(struct fdstore *store)
{
	(void)store;
	_exit(EX_TEMPFAIL);
}

Test(supervise, a_first_start_that_lacks_memory_is_not_repeated, .init = setup)
{
	cr_expect(eq(int, finish(start(lack_memory)), EX_TEMPFAIL));
	cr_expect(eq(int, shared->n_starts, 1));
}

/* The first child serves clients and dies. More starts lack memory than the
 * supervisor accepts deaths. */
static void serve_and_lack_memory(struct fdstore *store)
{
	if (shared->n_starts == 1) {
		fdstore_notify_now(store, "READY=1");
		kill(getpid(), SIGKILL);
	}
	_exit(shared->n_starts < 7 ? EX_TEMPFAIL : 0);
}

Test(supervise, a_later_start_that_lacks_memory_is_repeated, .init = setup)
{
	cr_expect(zero(int, finish(start(serve_and_lack_memory))));
	cr_expect(eq(int, shared->n_starts, 7));
}

/* The first child stores two descriptors, removes one, and dies at once, before
 * the supervisor can have looked at the messages. The second child finds the
 * one that is left. */
static void store_and_die(struct fdstore *store)
{
	uint64_t value = 0;
	int fd;

	if (shared->n_starts == 1) {
		if (memfd_create_sealed("a", 4096, MEMFD_SEAL_CLOSED, &fd,
					NULL) < 0)
			_exit(1);
		if (pwrite(fd, &(uint64_t){4711}, 8, 0) != 8)
			_exit(1);
		if (fdstore_put(store, fd, "catalog", NULL) < 0 ||
		    fdstore_put(store, fd, "c1", NULL) < 0 ||
		    fdstore_put(store, STDIN_FILENO, "c2", NULL) < 0)
			_exit(1);
		fdstore_remove(store, "c2");
		kill(getpid(), SIGKILL);
	}
	if (store->n_inherited != 3 || fdstore_take(store, "c2") >= 0)
		_exit(2);
	fd = fdstore_take(store, "catalog");
	if (fd < 0 || pread(fd, &value, 8, 0) != 8)
		_exit(3);
	shared->sum = value;
	say(store);
	_exit(0);
}

Test(supervise, stored_descriptors_are_passed_on_after_a_kill, .init = setup)
{
	pid_t supervisor = start(store_and_die);

	cr_expect(zero(int, finish(supervisor)));
	cr_expect(eq(int, shared->n_starts, 2));
	cr_expect(eq(u64, shared->sum, 4711));
	await_child();
	/* The descriptors are stdin, stdout, stderr, "listen" and the notify
	 * socket. The second child also has "catalog" and "c1". */
	cr_expect(eq(int, shared->n_fds[0], 5));
	cr_expect(eq(int, shared->n_fds[1], 7));
}

static void store_many(struct fdstore *store)
{
	uint32_t i;

	if (shared->n_starts == 1) {
		for (i = 0; i < 700; i++) {
			char name[FDSTORE_NAME_SIZE];
			int fd;

			snprintf(name, sizeof(name), "c%u", i);
			if (memfd_create_sealed("a", 4096, MEMFD_SEAL_CLOSED,
						&fd, NULL) < 0 ||
			    fdstore_put(store, fd, name, NULL) < 0)
				_exit(1);
			close(fd);
		}
		kill(getpid(), SIGKILL);
	}
	shared->sum = store->n_inherited;
	_exit(0);
}

Test(supervise, more_descriptors_are_stored_than_the_soft_limit, .init = setup)
{
	struct rlimit limit;

	cr_assert(zero(int, getrlimit(RLIMIT_NOFILE, &limit)));
	cr_assert(ge(ulong, limit.rlim_max, 2000));
	limit.rlim_cur = 256;
	cr_assert(zero(int, setrlimit(RLIMIT_NOFILE, &limit)));
	cr_expect(zero(int, finish(start(store_many))));
	cr_expect(eq(u64, shared->sum, 701));
}

/* The supervisor keeps nothing from a process other than the broker. */
static void store_from_a_stranger(struct fdstore *store)
{
	int status;
	pid_t pid;

	if (shared->n_starts == 2) {
		shared->sum = store->n_inherited;
		_exit(0);
	}
	pid = fork();
	if (pid == 0)
		_exit(fdstore_put(store, 0, "catalog", NULL) < 0);
	waitpid(pid, &status, 0);
	kill(getpid(), SIGKILL);
}

Test(supervise, notifications_of_other_processes_are_ignored, .init = setup)
{
	cr_expect(zero(int, finish(start(store_from_a_stranger))));
	cr_expect(eq(u64, shared->sum, 1));
}

static void wait_for_term(struct fdstore *store)
{
	sigset_t mask;
	int signal_number;

	sigemptyset(&mask);
	sigaddset(&mask, SIGTERM);
	sigaddset(&mask, SIGINT);
	sigprocmask(SIG_BLOCK, &mask, NULL);
	say(store);
	sigwait(&mask, &signal_number);
	_exit(signal_number == SIGTERM ? 3 : 4);
}

Test(supervise, a_termination_signal_is_passed_on_and_ends_the_supervisor,
     .init = setup)
{
	pid_t supervisor = start(wait_for_term);

	await_child();
	kill(supervisor, SIGTERM);
	cr_expect(eq(int, finish(supervisor), 3));
	cr_expect(eq(int, shared->n_starts, 1));
}

static void say_and_wait(struct fdstore *store)
{
	say(store);
	for (;;)
		pause();
}

Test(supervise, the_broker_outlives_its_supervisor, .init = setup)
{
	pid_t supervisor = start(say_and_wait);
	int status;

	await_child();
	kill(supervisor, SIGKILL);
	cr_assert(eq(int, waitpid(supervisor, &status, 0), supervisor));
	cr_expect(zero(int, kill(shared->child, 0)));
	kill(shared->child, SIGKILL);
}

Test(supervise, a_killed_broker_is_started_again_at_once, .init = setup)
{
	pid_t supervisor = start(say_and_wait);
	pid_t first;

	await_child();
	first = shared->child;
	kill(first, SIGKILL);
	await_child();
	cr_expect(ne(int, shared->child, first));
	kill(supervisor, SIGTERM);
	/* The supervisor passes SIGTERM on to the broker. That the broker dies
	 * of it is not a failure. */
	cr_expect(eq(int, finish(supervisor), 0));
}
