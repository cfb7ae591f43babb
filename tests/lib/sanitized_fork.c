/*
 * fork() for Criterion's programs under AddressSanitizer.
 *
 * Criterion 2.4.1 forks while one of its threads receives messages, and the
 * child allocates memory before it executes itself. The allocator of this
 * sanitizer (gcc 12) does not handle forks: if that thread held one of its
 * locks at that moment, no thread of the child ever releases it, and Criterion
 * waits for the child forever, even if its tests have time-outs.
 *
 * So the parent looks at its other threads before and after the fork. If they
 * slept all the time where they wait for messages, they held no lock, and the
 * parent lets the child continue. A test has only one other thread, which
 * nearly always sleeps.
 *
 * Otherwise the child first takes every lock of the allocator once. A child
 * that cannot do so is killed, and another one is made. This is expensive,
 * because it copies all memory that the parent has freed and that the sanitizer
 * keeps.
 *
 * The parent decides here, too: a child that has taken the locks asks, and
 * continues only when the parent has replied. So a child that has done
 * something is never killed, and the parent need not wait long to be sure of
 * that.
 *
 * The program's definition has precedence over that of libc, for libraries as
 * well.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef SYS_epoll_wait
#define SYS_epoll_wait SYS_epoll_pwait /* as on aarch64 */
#endif

/* Most children ask within 30 ms. The next child gets twice that time: a busy
 * machine may need it. */
#define FIRST_PATIENCE_MS 200

void __sanitizer_purge_allocator(void); /* takes all locks of the allocator */
__attribute__((visibility("default"))) pid_t fork(void);

static pid_t real_fork(void)
{
	pid_t (*next)(void) = (pid_t(*)(void))dlsym(RTLD_NEXT, "fork");

	return next();
}

/* Returns a number, counted from 0, of those with which a file of /proc about a
 * thread begins, or -1: also if it is "running". */
static long long read_number(const char *task, const char *file, int i)
{
	long long numbers[3] = {-1, -1, -1};
	char path[64], text[256];
	ssize_t size = -1;
	int fd;

	snprintf(path, sizeof(path), "/proc/self/task/%.20s/%s", task, file);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0) {
		size = read(fd, text, sizeof(text) - 1);
		close(fd);
	}
	if (size > 0) {
		text[size] = '\0';
		(void)!sscanf(text, "%lld %lld %lld", &numbers[0], &numbers[1],
			      &numbers[2]);
	}
	return numbers[i];
}

/* Returns how often the kernel has let the thread run, or -1 if it does not
 * sleep in epoll_wait(), as the one that receives messages does. */
static long long count_runs(const char *task)
{
	long long n = read_number(task, "schedstat", 2);

	/* a kernel that does not count says 0 */
	if (n <= 0 || read_number(task, "syscall", 0) != SYS_epoll_wait)
		return -1;
	return n;
}

/* Returns the sum of these for all other threads, or -1. It allocates no
 * memory, which would push other memory out of the quarantine. */
static long long count_runs_of_others(void)
{
	int fd = open("/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	_Alignas(struct dirent64) char entries[1024];
	ssize_t size, at;
	long long sum = 0;

	while ((size = getdents64(fd, entries, sizeof(entries))) > 0) {
		for (at = 0; at < size;) {
			struct dirent64 *entry = (void *)(entries + at);
			long long n = 0;

			at += entry->d_reclen;
			if (*entry->d_name != '.' &&
			    atoi(entry->d_name) != gettid())
				n = count_runs(entry->d_name);
			sum = n < 0 || sum < 0 ? -1 : sum + n;
		}
	}
	if (fd >= 0)
		close(fd);
	return size < 0 ? -1 : sum;
}

/* Runs in the parent: lets the child continue if it asks in time or has
 * ended. */
static bool let_go_on(int fd, int patience_ms)
{
	struct pollfd question = {.fd = fd, .events = POLLIN};
	int r;

	do
		r = poll(&question, 1, patience_ms);
	while (r < 0);
	if (r > 0)
		(void)!send(fd, "", 1, MSG_NOSIGNAL);
	return r > 0;
}

/* Runs in the child: waits for a word of the parent, or for its end. */
static bool hear(int fd)
{
	bool word = false;

	while (recv(fd, &word, 1, 0) < 0 && errno == EINTR)
		;
	return word;
}

/* Runs in the child: returns when it can allocate memory. */
static void await_locks(int fd)
{
	if (hear(fd))
		return;
	__sanitizer_purge_allocator();
	(void)!send(fd, "", 1, MSG_NOSIGNAL);
	(void)hear(fd);
}

/* Forks, and tells the child whether the other threads slept meanwhile. In the
 * parent `ret_is_done` is whether it can leave the child alone. */
static pid_t try_fork(int ends[2], bool *ret_is_done)
{
	long long n_runs = count_runs_of_others();
	pid_t pid = real_fork();
	bool have_slept;

	if (pid == 0) {
		close(ends[0]);
		await_locks(ends[1]);
		close(ends[1]);
		return 0;
	}
	have_slept = pid > 0 && n_runs >= 0 && n_runs == count_runs_of_others();
	(void)!send(ends[0], &have_slept, 1, MSG_NOSIGNAL);
	*ret_is_done = pid < 0 || have_slept;
	return pid;
}

pid_t fork(void)
{
	for (int patience_ms = FIRST_PATIENCE_MS;; patience_ms *= 2) {
		int ends[2];
		bool is_done;
		pid_t pid;

		if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) <
		    0)
			return real_fork();
		pid = try_fork(ends, &is_done);
		if (pid == 0)
			return 0;
		close(ends[1]);
		is_done = is_done || let_go_on(ends[0], patience_ms);
		if (!is_done) {
			(void)kill(pid, SIGKILL);
			(void)waitpid(pid, NULL, 0);
		}
		/* a child that asks only now takes this for a reply */
		close(ends[0]);
		if (is_done)
			return pid;
	}
}
