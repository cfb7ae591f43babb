/*
 * A fork() for Criterion's programs under AddressSanitizer.
 *
 * Criterion 2.4.1 forks while a thread of its own receives messages, and the
 * child allocates memory before it executes itself. The allocator of this
 * sanitizer (gcc 12) does not handle forks: if that thread held one of its
 * locks at that moment, no thread of the child ever releases it, and Criterion
 * waits for the child for ever, whatever time-outs its tests have. So a child
 * first takes every lock of the allocator once. A child that cannot do so is
 * ended, and another one is made.
 *
 * The program's definition has precedence over libc's, for libraries as well.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/wait.h>
#include <unistd.h>

/* No child needs that long. A value that is too short only costs another
 * child. */
#define PATIENCE_MS 10000

void __sanitizer_purge_allocator(void); /* takes all locks */
__attribute__((visibility("default"))) pid_t fork(void);

static pid_t real_fork(void)
{
	pid_t (*next)(void) = (pid_t(*)(void))dlsym(RTLD_NEXT, "fork");

	return next();
}

/* Wait until the child has reported that it is well, or has ended by itself. */
static bool is_well(int fd)
{
	struct pollfd end = {.fd = fd, .events = POLLIN};
	int r;

	do
		r = poll(&end, 1, PATIENCE_MS);
	while (r < 0);
	return r > 0;
}

/* In the child only the way out may precede its report. */
static pid_t try_fork(int said[2])
{
	pid_t pid = real_fork();

	if (pid != 0)
		return pid;
	__sanitizer_purge_allocator();
	(void)!write(said[1], "", 1);
	close(said[0]);
	close(said[1]);
	return 0;
}

pid_t fork(void)
{
	for (;;) {
		int said[2];
		bool has_said;
		pid_t pid;

		if (pipe2(said, O_CLOEXEC) < 0)
			return real_fork();
		pid = try_fork(said);
		if (pid == 0)
			return 0;
		close(said[1]);
		has_said = pid < 0 || is_well(said[0]);
		close(said[0]);
		if (has_said)
			return pid;
		(void)kill(pid, SIGKILL);
		(void)waitpid(pid, NULL, 0);
	}
}
