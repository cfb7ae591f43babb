/*
 * Tests which files can be opened under Landlock's rules. Each test is a
 * process of its own, because the rules cannot be left.
 */
#include "proto/error.h"
#include "sandbox/landlock.h"
#include "tests/lib/check.h"
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define SKIPPED 77

/* Let the child's exit status say that a condition is not met. */
static void must(bool is_met)
{
	if (!is_met)
		_exit(1);
}

/* Folders, each of which contains the file `there`. */
static char readable[64], own[64], other[64];

static void make_folder(char folder[64])
{
	char path[80];
	int fd;

	strcpy(folder, "/tmp/fsdp-landlock-XXXXXX");
	cr_assert(mkdtemp(folder) != NULL);
	snprintf(path, sizeof(path), "%s/there", folder);
	fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	cr_assert(ge(int, fd, 0));
	cr_assert(eq(int, (int)write(fd, "text", 4), 4));
	close(fd);
}

static void make_folders(void)
{
	make_folder(readable);
	make_folder(own);
	make_folder(other);
}

/* This must run in a process without the rules. */
static void remove_folders(void)
{
	char command[320];

	snprintf(command, sizeof(command), "rm -rf %s %s %s", readable, own,
		 other);
	cr_assert(zero(int, system(command)));
}

/* 0 or the errno of opening a file of the folder. */
static int try_open(const char *folder, const char *name, int flags)
{
	char path[80];
	int fd;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	fd = open(path, flags | O_CLOEXEC, 0600);
	if (fd < 0)
		return errno;
	close(fd);
	return 0;
}

static void enter(void)
{
	const struct landlock_rule rules[] = {
		{readable, LANDLOCK_READ},
		{own, LANDLOCK_OWN},
		{"/proc", LANDLOCK_READ},
		{"/does/not/exist", LANDLOCK_READ},
	};
	struct error err = ERROR_NULL;
	int r = landlock_enter(rules, sizeof(rules) / sizeof(*rules), &err);

	if (r == -EOPNOTSUPP)
		_exit(SKIPPED);
	must(r == 0);
}

/* Run the test in a child, so that the folders can be removed after it. */
static void in_landlock(void (*test)(void))
{
	int status;
	pid_t pid;

	make_folders();
	pid = fork();
	cr_assert(ge(int, pid, 0));
	if (pid == 0) {
		enter();
		test();
		_exit(0);
	}
	cr_assert(eq(int, waitpid(pid, &status, 0), pid));
	remove_folders();
	if (WIFEXITED(status) && WEXITSTATUS(status) == SKIPPED)
		cr_skip_test("no Landlock in this kernel or build");
	cr_expect(zero(int, status));
}

TestSuite(landlock, .timeout = 300);

Test(landlock, is_entered_unless_the_build_or_the_kernel_cannot)
{
	const struct landlock_rule all = {"/", LANDLOCK_OWN};
	struct error err = ERROR_NULL;
	int r = landlock_enter(&all, 1, &err);

	if (r != 0)
		cr_expect(eq(int, r, -EOPNOTSUPP), "%s", err.msg);
	cr_expect(eq(int, err.code, r));
}

static void open_by_rules(void)
{
	must(try_open(readable, "there", O_RDONLY) == 0);
	must(try_open(readable, "there", O_WRONLY) == EACCES);
	must(try_open(readable, "new", O_RDWR | O_CREAT) == EACCES);
	must(try_open(own, "there", O_RDWR) == 0);
	must(try_open(own, "new", O_RDWR | O_CREAT) == 0);
	must(try_open(other, "there", O_RDONLY) == EACCES);
}

Test(landlock, opens_only_files_that_the_rules_allow)
{
	in_landlock(open_by_rules);
}

static void open_in_programs(void)
{
	pid_t pid = fork();
	int status;

	if (pid == 0)
		_exit(try_open(other, "there", O_RDONLY));
	must(waitpid(pid, &status, 0) == pid);
	must(WIFEXITED(status) && WEXITSTATUS(status) == EACCES);
}

Test(landlock, holds_for_children)
{
	in_landlock(open_in_programs);
}

/* Open memory again, as the broker does for clients that may only read it. */
static void open_memory_again(void)
{
	int fd = memfd_create("x", MFD_CLOEXEC);
	char name[32];

	must(fd >= 0 && ftruncate(fd, 4096) == 0);
	snprintf(name, sizeof(name), "%d", fd);
	must(try_open("/proc/self/fd", name, O_RDONLY) == 0);
	must(try_open("/proc/self/fd", name, O_RDWR) == 0);
}

Test(landlock, leaves_memory_files_alone)
{
	in_landlock(open_memory_again);
}

static void connect_by_tcp(void)
{
	const struct sockaddr_in address = {
		.sin_family = AF_INET,
		.sin_port = htons(1),
		.sin_addr = {htonl(INADDR_LOOPBACK)},
	};
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	must(fd >= 0);
	must(connect(fd, (const struct sockaddr *)&address, sizeof(address)) <
	     0);
	/* Kernels before 6.7 have no rules for it. */
	must(errno == EACCES || errno == ECONNREFUSED);
}

Test(landlock, allows_no_tcp_connection)
{
	in_landlock(connect_by_tcp);
}
