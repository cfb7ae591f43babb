/* Tests failpoints, which exist in builds for tests only. */
#include "proto/failpoint.h"
#include "tests/lib/check.h"

#include <stdlib.h>

#ifndef FSDP_TEST_POINTS
Test(point, has_no_effect_in_a_release)
{
	cr_assert(zero(int, setenv("FSDP_FAIL_AT", "a.b:*:EIO", 1)));
	failpoint("a.b");
	cr_assert(zero(int, failpoint_fail("a.b")));
}
#else
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Returns the signal that ended a child that passed the failpoint, or 0. */
static int pass_in_child(const char *name)
{
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		failpoint(name);
		_exit(0);
	}
	cr_assert(eq(int, waitpid(pid, &status, 0), pid));
	return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

Test(point, kills_at_the_named_place)
{
	setenv("FSDP_KILL_AT", "a.b", 1);
	cr_assert(zero(int, pass_in_child("a.bc")));
	cr_assert(eq(int, pass_in_child("a.b"), SIGKILL));
}

Test(point, kills_once_per_token)
{
	char path[] = "/tmp/point-XXXXXX";

	close(mkstemp(path));
	setenv("FSDP_KILL_AT", "a.b", 1);
	setenv("FSDP_KILL_TOKEN", path, 1);
	cr_assert(eq(int, pass_in_child("a.b"), SIGKILL));
	cr_assert(ne(int, access(path, F_OK), 0));
	cr_assert(zero(int, pass_in_child("a.b")));
}

Test(point, fails_at_the_planned_passages_in_order)
{
	static const char plan[] = "a.b 2 EIO\nc 1 12\n";
	char path[] = "/tmp/point-XXXXXX";
	int fd = mkstemp(path);

	cr_assert(eq(sz, (size_t)write(fd, plan, strlen(plan)), strlen(plan)));
	close(fd);
	setenv("FSDP_FAIL_PLAN", path, 1);
	cr_assert(zero(int, failpoint_fail("c")));
	cr_assert(zero(int, failpoint_fail("a.b")));
	cr_assert(eq(int, failpoint_fail("a.b"), -EIO));
	cr_assert(zero(int, failpoint_fail("a.b")));
	cr_assert(eq(int, failpoint_fail("c"), -ENOMEM));
	cr_assert(ne(int, access(path, F_OK), 0), "a plan that is done stays");
}

Test(point, kills_at_the_planned_passages_in_order)
{
	char path[] = "/tmp/point-XXXXXX";
	int fd = mkstemp(path);

	cr_assert(eq(sz, (size_t)write(fd, "a.b 2\nc 1\n", 10), 10));
	close(fd);
	setenv("FSDP_KILL_PLAN", path, 1);
	cr_assert(zero(int, pass_in_child("c")));
	cr_assert(zero(int, pass_in_child("a.b")));
	cr_assert(eq(int, pass_in_child("a.b"), SIGKILL));
	cr_assert(zero(int, pass_in_child("a.b")));
	cr_assert(eq(int, pass_in_child("c"), SIGKILL));
	cr_assert(ne(int, access(path, F_OK), 0));
	cr_assert(zero(int, pass_in_child("c")));
}

Test(point, stops_at_the_planned_passage_until_it_is_continued)
{
	char path[] = "/tmp/point-XXXXXX";
	int fd = mkstemp(path), status;
	pid_t pid;

	cr_assert(eq(sz, (size_t)write(fd, "a.b 1\n", 6), 6));
	close(fd);
	setenv("FSDP_STOP_PLAN", path, 1);
	pid = fork();
	if (pid == 0) {
		failpoint("a.b");
		_exit(7);
	}
	cr_assert(eq(int, waitpid(pid, &status, WUNTRACED), pid));
	cr_assert(WIFSTOPPED(status));
	cr_assert(ne(int, access(path, F_OK), 0));
	cr_assert(zero(int, kill(pid, SIGCONT)));
	cr_assert(eq(int, waitpid(pid, &status, 0), pid));
	cr_assert(eq(int, WEXITSTATUS(status), 7));
}

Test(point, fails_at_the_given_passage)
{
	setenv("FSDP_FAIL_AT", "a.b:2:ENOMEM", 1);
	cr_assert(zero(int, failpoint_fail("a.b")));
	cr_assert(zero(int, failpoint_fail("a.bc")));
	cr_assert(zero(int, failpoint_fail("a")));
	cr_assert(eq(int, failpoint_fail("a.b"), -ENOMEM));
	cr_assert(zero(int, failpoint_fail("a.b")));
}

Test(point, fails_at_every_passage_if_a_star_is_given)
{
	setenv("FSDP_FAIL_AT", "a.b:*:5", 1);
	cr_assert(eq(int, failpoint_fail("a.b"), -EIO));
	cr_assert(eq(int, failpoint_fail("a.b"), -EIO));
}

Test(point, logs_every_place_that_is_passed)
{
	char path[] = "/tmp/point-XXXXXX", text[32] = "";
	FILE *file;

	close(mkstemp(path));
	setenv("FSDP_POINTS_LOG", path, 1);
	failpoint("a.b");
	(void)failpoint_fail("c");
	file = fopen(path, "r");
	cr_assert(eq(sz, fread(text, 1, sizeof(text) - 1, file), 6));
	cr_assert(eq(str, text, "a.b\nc\n"));
	fclose(file);
	unlink(path);
}
#endif
