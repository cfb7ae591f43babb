/*
 * Criterion listens at /tmp/criterion_PID.sock. A test that was killed leaves
 * such a socket, which only its user and root can remove. A program of another
 * user that gets the same PID could not begin, so it goes on in a child.
 */
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static bool is_taken(void)
{
	struct stat status;
	char path[64];

	snprintf(path, sizeof(path), "/tmp/criterion_%d.sock", getpid());
	return lstat(path, &status) == 0 && status.st_uid != geteuid();
}

static _Noreturn void end_like(pid_t child)
{
	int status = 0;

	if (waitpid(child, &status, 0) < 0 || !WIFEXITED(status))
		abort();
	_exit(WEXITSTATUS(status));
}

/* The processes of single tests, which have BXFI_MAP, do not listen. */
__attribute__((constructor)) static void find_free_name(void)
{
	pid_t child;

	while (!getenv("BXFI_MAP") && geteuid() != 0 && is_taken()) {
		child = fork();
		if (child != 0)
			end_like(child);
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	}
}
