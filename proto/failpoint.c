/*
 * Failpoints, in builds for tests only.
 *
 * The environment is read each time, because a test changes it for each child
 * that it starts. The log is opened only once, because tests that try all
 * failpoints pass about 100,000 of them.
 */
#include "proto/failpoint.h"

#ifdef FSDP_TEST_POINTS
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

/* above the largest errno of the kernel for user space */
#define ERRNO_END  134
#define ERRNO_SIZE 16

/* Returns the descriptor of the log, which stays open, or -1 if there is no
 * log. */
static int log_fd(void)
{
	static atomic_int opened = -1;
	const char *path = getenv("FSDP_POINTS_LOG");
	int fd = atomic_load(&opened), none = -1;

	if (fd >= 0 || !path)
		return fd;
	fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
	/* another thread may have opened it meanwhile */
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
	/* a single write() keeps lines of several processes apart */
	if (write(fd, line, size + 1) < 0)
		abort();
}

/* Writes the remaining lines of a plan, or removes the file if there are
 * none. */
static void keep_plan(int fd, const char *path, const char *rest)
{
	size_t size = strlen(rest);

	if (size == 0 && unlink(path) < 0)
		abort();
	if (ftruncate(fd, 0) < 0 || pwrite(fd, rest, size, 0) != (ssize_t)size)
		abort();
}

/* Returns whether this passage is the one in the first line of the plan, and
 * then removes the line. `ret_errno` is the third word of the line. */
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
	int fd = -1;

	/* Nearly always there is no plan, and access() finds that out in less
	 * time than open(). */
	if (path && access(path, F_OK) == 0)
		fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return false;
	/* several threads can pass failpoints at the same time */
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

/* Converts "ENOMEM" or "12" to a number. */
static int errno_by_name(const char *name)
{
	for (int e = 1; e < ERRNO_END; e++) {
		const char *known = strerrorname_np(e);

		if (known && strcmp(known, name) == 0)
			return e;
	}
	return (int)strtol(name, NULL, 10);
}

/* Counts the passage, and returns whether it is the one in "<n>:<errno>". */
static bool is_due(const char *spec)
{
	static atomic_ulong passed;
	/* relaxed, because the counter orders no other accesses */
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
