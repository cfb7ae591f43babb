/*
 * fork() for Criterion's programs under AddressSanitizer.
 *
 * Criterion 2.4.1 forks while one of its threads receives messages, and the
 * child allocates memory before it executes itself. The allocator of this
 * sanitizer (gcc 12) does not handle forks: if that thread held one of its
 * locks at that moment, no thread of the child ever releases it, and Criterion
 * waits for the child forever, even if its tests have time-outs. So a child
 * first takes every lock of the allocator once. A child that cannot do so is
 * killed, and another one is made.
 *
 * The parent decides: a child that has taken the locks asks, and continues only
 * when the parent has replied. So a child that has done something is never
 * killed, and the parent need not wait long to be sure of that.
 *
 * The program's definition has precedence over that of libc, for libraries as
 * well.
 */
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

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

/* Runs in the child: asks, and waits for the reply, or for the parent's end. */
static void ask(int fd)
{
	char reply;

	(void)!send(fd, "", 1, MSG_NOSIGNAL);
	while (recv(fd, &reply, 1, 0) < 0 && errno == EINTR)
		;
}

static pid_t try_fork(int ends[2])
{
	pid_t pid = real_fork();

	if (pid != 0)
		return pid;
	__sanitizer_purge_allocator();
	close(ends[0]);
	ask(ends[1]);
	close(ends[1]);
	return 0;
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
		pid = try_fork(ends);
		if (pid == 0)
			return 0;
		close(ends[1]);
		is_done = pid < 0 || let_go_on(ends[0], patience_ms);
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
