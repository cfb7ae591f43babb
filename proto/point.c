/*
 * Kill and failure points, in the builds for tests only.
 *
 * The environment is read at each passage: a test changes it for a child it
 * starts, and speed is no concern here.
 */
#include "proto/point.h"

#ifdef FSDP_TEST_POINTS
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ERRNO_END 134 /* the kernel's numbers for user space end here */

static void log_name(const char *name)
{
	const char *path = getenv("FSDP_POINTS_LOG");
	char line[128];
	size_t size = strlen(name);
	int fd;

	if (!path || size >= sizeof(line))
		return;
	fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0)
		return;
	memcpy(line, name, size);
	line[size] = '\n';
	/* One write, so that lines of several processes do not mix. */
	if (write(fd, line, size + 1) < 0)
		abort();
	(void)close(fd);
}

void point(const char *name)
{
	const char *place = getenv("FSDP_KILL_AT");
	const char *token = getenv("FSDP_KILL_TOKEN");

	log_name(name);
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

int point_fail(const char *name)
{
	const char *spec = getenv("FSDP_FAIL_AT");
	size_t size = strlen(name);
	const char *number;

	point(name);
	if (!spec || strncmp(spec, name, size) != 0 || spec[size] != ':')
		return 0;
	spec += size + 1;
	number = strchr(spec, ':');
	if (!number || !is_due(spec))
		return 0;
	return -errno_by_name(number + 1);
}
#endif
