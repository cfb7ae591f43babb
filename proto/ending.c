/*
 * The evidence is /proc/PID/oom_score. To compute it, the kernel searches all
 * threads, from the oldest to the newest, for one with an address space, and
 * writes 0 if it finds none. A thread that is created meanwhile comes later in
 * this order, and its creator had an address space, so no thread is missed.
 * Neither is a process missed whose first thread exited before the others.
 *
 * The kernel also writes 0 for a process whose score is lowered that far
 * (oom_score_adj), for a child of vfork() before its exec, which has the
 * address space of its parent, and for the init process. So the adjustment is
 * read between two scores, and the first thread must have no address space.
 *
 * Reading the score does not keep the address space. Reading other files does,
 * such as /proc/PID/stat and statm, and the last process that drops an address
 * space must free all its memory. Here statm is read only when the process has
 * dropped its address space.
 */
#include "proto/ending.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FILE_SIZE 64
/* Adjustments from -999 on can make the score of a small process 0. */
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
