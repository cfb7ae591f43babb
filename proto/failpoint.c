/*
 * Kill, stop and failure points, in the builds for tests only.
 *
 * The environment is read at each passage: a test changes it for a child it
 * starts. The log is opened once, since sweeps pass some 100,000 points.
 */
#include "proto/failpoint.h"

#ifdef FSDP_TEST_POINTS
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#define ERRNO_END  134 /* the kernel's numbers for user space end here */
#define ERRNO_SIZE 16

/* The log, which stays open; -1: none. */
static int log_fd(void)
{
	static atomic_int opened = -1;
	const char *path = getenv("FSDP_POINTS_LOG");
	int fd = atomic_load(&opened), none = -1;

	if (fd >= 0 || !path)
		return fd;
	fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
	/* Another thread may have been first. */
	if (fd >= 0 && !atomic_compare_exchange_strong(&opened, &none, fd)) {
		(void)close(fd);
		fd = none;
	}
	return fd;
}

static void log_name(const char *name)
{
	char line[128];
	size_t size = strlen(name);
	int fd = log_fd();

	if (fd < 0 || size >= sizeof(line))
		return;
	memcpy(line, name, size);
	line[size] = '\n';
	/* One write, so that lines of several processes do not mix. */
	if (write(fd, line, size + 1) < 0)
		abort();
}

/* Write the rest of a plan; one without deaths goes. */
static void keep_plan(int fd, const char *path, const char *rest)
{
	size_t size = strlen(rest);

	if (size == 0 && unlink(path) < 0)
		abort();
	if (ftruncate(fd, 0) < 0 || pwrite(fd, rest, size, 0) != (ssize_t)size)
		abort();
}

/* Is this passage the one that the plan's first line is about? The line is
 * struck out then, and `ret_errno` is what it has after the count. */
static bool is_planned(int fd, const char *path, const char *name,
		       char ret_errno[ERRNO_SIZE])
{
	char text[1024], place[64], rest[sizeof(text) + 96];
	unsigned long left;
	ssize_t size = pread(fd, text, sizeof(text) - 1, 0);
	char *lines = text;
	const char *line;

	if (size <= 0)
		return false;
	text[size] = '\0';
	line = strsep(&lines, "\n");
	*ret_errno = '\0';
	if (sscanf(line, "%63s %lu %15s", place, &left, ret_errno) < 2 ||
	    strcmp(place, name) != 0)
		return false;
	lines = lines ? lines : text + size;
	if (left > 1)
		snprintf(rest, sizeof(rest), "%s %lu %s\n%s", place, left - 1,
			 ret_errno, lines);
	else
		snprintf(rest, sizeof(rest), "%s", lines);
	keep_plan(fd, path, rest);
	return left <= 1;
}

static bool follow_plan(const char *variable, const char *name,
			char ret_errno[ERRNO_SIZE])
{
	const char *path = getenv(variable);
	bool is_due;
	int fd;

	fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
	if (fd < 0)
		return false;
	/* Threads pass points at the same time. */
	if (flock(fd, LOCK_EX) < 0)
		abort();
	is_due = is_planned(fd, path, name, ret_errno);
	(void)close(fd);
	return is_due;
}

void failpoint(const char *name)
{
	const char *place = getenv("FSDP_KILL_AT");
	const char *token = getenv("FSDP_KILL_TOKEN");
	char unused[ERRNO_SIZE];

	log_name(name);
	if (follow_plan("FSDP_KILL_PLAN", name, unused))
		(void)raise(SIGKILL);
	if (follow_plan("FSDP_STOP_PLAN", name, unused))
		(void)raise(SIGSTOP);
	if (!place || strcmp(place, name) != 0)
		return;
	if (token && unlink(token) < 0)
		return;
	(void)raise(SIGKILL);
}

/* "ENOMEM" or "12". */
static int errno_by_name(const char *name)
{
	for (int e = 1; e < ERRNO_END; e++) {
		const char *known = strerrorname_np(e);

		if (known && strcmp(known, name) == 0)
			return e;
	}
	return (int)strtol(name, NULL, 10);
}

/* Is it the passage of "<n>:<errno>"? Counts those of the place it names. */
static bool is_due(const char *spec)
{
	static atomic_ulong passed;
	/* Relaxed: it is a counter and orders nothing. */
	unsigned long n =
		1 + atomic_fetch_add_explicit(&passed, 1, memory_order_relaxed);

	return spec[0] == '*' || strtoul(spec, NULL, 10) == n;
}

int failpoint_fail(const char *name)
{
	const char *spec = getenv("FSDP_FAIL_AT");
	size_t size = strlen(name);
	char planned[ERRNO_SIZE];
	const char *number;

	failpoint(name);
	if (follow_plan("FSDP_FAIL_PLAN", name, planned))
		return -errno_by_name(planned);
	if (!spec || strncmp(spec, name, size) != 0 || spec[size] != ':')
		return 0;
	spec += size + 1;
	number = strchr(spec, ':');
	if (!number || !is_due(spec))
		return 0;
	return -errno_by_name(number + 1);
}
#endif
