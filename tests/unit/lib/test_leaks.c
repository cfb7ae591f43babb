/* Tests that a process ends if a test leaves something behind, but not if a
 * driver keeps something as long as the process lives. */
#include "tests/lib/check.h"
#include "tests/lib/leaks.h"
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define SIZE 4096

/* Open a file of that name, and map it too if that is wanted. */
static void leave(const char *name, bool is_mapped)
{
	int fd = memfd_create(name, MFD_CLOEXEC);

	if (fd < 0 || ftruncate(fd, SIZE) < 0)
		_exit(1);
	if (!is_mapped)
		return;
	if (mmap(NULL, SIZE, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED)
		_exit(1);
	close(fd);
}

static bool is_leak(const char *name, bool is_mapped)
{
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		if (!freopen("/dev/null", "w", stderr))
			_exit(1);
		leaks_begin();
		leave(name, is_mapped);
		leaks_check();
		_exit(0);
	}
	cr_assert(eq(int, waitpid(pid, &status, 0), pid));
	cr_assert(!WIFEXITED(status) || zero(int, WEXITSTATUS(status)));
	return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

Test(leaks, files_and_mappings_are_found)
{
	cr_expect(is_leak("memory", false));
	cr_expect(is_leak("memory", true));
}

Test(leaks, files_and_mappings_of_a_driver_are_not_leaks)
{
	cr_expect(!is_leak("/dev/nvidiactl", false));
	cr_expect(!is_leak("/dev/nvidia0", true));
}
