/* Tests that nothing is opened under the numbers of the standard files. */
#include "proto/std_fds.h"
#include "tests/lib/check.h"
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

static const int fds[] = {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO};

/* Criterion needs its standard files, so they are put back. */
static void without(int fd, void (*look)(int fd))
{
	int saved = fcntl(fd, F_DUPFD_CLOEXEC, 10);

	cr_assert(ge(int, saved, 10));
	close(fd);
	std_fds_open();
	look(fd);
	dup2(saved, fd);
	close(saved);
}

static void expect_no_free_number(int fd)
{
	int opened = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	cr_expect(gt(int, opened, fd));
	close(opened);
}

Test(std_fds, no_file_gets_the_number_of_a_standard_one)
{
	for (size_t i = 0; i < 3; i++)
		without(fds[i], expect_no_free_number);
}

static void expect_failure(int fd)
{
	char byte = 0;

	if (fd == STDIN_FILENO)
		cr_expect(eq(i64, read(fd, &byte, 1), -1));
	else
		cr_expect(eq(i64, write(fd, &byte, 1), -1));
	cr_expect(eq(int, errno, EBADF));
}

Test(std_fds, a_closed_one_still_fails)
{
	for (size_t i = 0; i < 3; i++)
		without(fds[i], expect_failure);
}

Test(std_fds, an_open_one_stays)
{
	int pipe_fds[2], saved = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 10);
	char byte = 0;

	cr_assert(zero(int, pipe2(pipe_fds, O_CLOEXEC)));
	dup2(pipe_fds[1], STDOUT_FILENO);
	std_fds_open();
	cr_expect(eq(i64, write(STDOUT_FILENO, "x", 1), 1));
	dup2(saved, STDOUT_FILENO);
	cr_expect(eq(i64, read(pipe_fds[0], &byte, 1), 1));
	cr_expect(eq(chr, byte, 'x'));
	close(pipe_fds[0]);
	close(pipe_fds[1]);
	close(saved);
}
