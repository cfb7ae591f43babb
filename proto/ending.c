/*
 * The proof is /proc/PID/oom_score. For it the kernel searches all threads,
 * from the oldest to the newest, for one with an address space, and writes 0 if
 * it finds no such thread. One that is made meanwhile comes later in this
 * order, and its maker had an address space when it made it, so no thread is
 * missed; nor is a process missed whose first thread has exited before the
 * others.
 *
 * It writes 0 as well for a process whose score is lowered so far
 * (oom_score_adj); for a child of vfork() before its exec, which has the
 * address space of its parent; and for the init process. So the adjustment is
 * read between two scores, and the first thread must have no address space.
 *
 * To read the score does not keep the address space. Other files do, such as
 * /proc/PID/stat and statm: a reader that is the last to let go of it frees all
 * of it. Here statm is read only when the process has let go.
 */
#include "proto/ending.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FILE_SIZE 64
/* From -999 on it makes the score of a small process 0. */
#define LEAST_ADJUSTMENT (-900)

static bool read_file(pid_t pid, const char *name, char ret[FILE_SIZE])
{
	char path[64];
	ssize_t n;
	int fd;

	(void)snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	n = read(fd, ret, FILE_SIZE - 1);
	close(fd);
	ret[n > 0 ? n : 0] = '\0';
	return n > 0;
}

static bool has_no_score(pid_t pid)
{
	char text[FILE_SIZE];

	return read_file(pid, "oom_score", text) && strcmp(text, "0\n") == 0;
}

static bool is_exempt(pid_t pid)
{
	char text[FILE_SIZE];

	return !read_file(pid, "oom_score_adj", text) ||
	       strtol(text, NULL, 10) < LEAST_ADJUSTMENT;
}

static bool has_no_address_space(pid_t pid)
{
	char text[FILE_SIZE];

	return read_file(pid, "statm", text) && strncmp(text, "0 ", 2) == 0;
}

bool process_is_ending(pid_t pid)
{
	return has_no_score(pid) && !is_exempt(pid) && has_no_score(pid) &&
	       has_no_address_space(pid);
}
