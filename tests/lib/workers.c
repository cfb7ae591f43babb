/*
 * This file finds workers in /proc.
 */
#include "tests/lib/workers.h"
#include "tests/lib/chaos.h"
#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

/* A count of workers calls this for each process of the machine. So it does
 * without stdio, whose buffers AddressSanitizer would keep. */
static bool read_file(pid_t pid, const char *what, char *ret, size_t size)
{
	char path[64];
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, what);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	n = read(fd, ret, size - 1);
	(void)close(fd);
	ret[n > 0 ? n : 0] = '\0';
	return n > 0;
}

/* A worker leads a process group. A process that a sanitizer forks does not. */
static bool is_leader(pid_t pid)
{
	char text[512];
	int group = 0;

	if (!read_file(pid, "stat", text, sizeof(text)))
		return false;
	(void)sscanf(strrchr(text, ')'), ") %*c %*d %d", &group);
	return group == pid;
}

/* A dead process has no environment. */
static bool is_worker(pid_t pid, const char *plan)
{
	size_t n = strlen(plan);
	char text[8192];

	if (!read_file(pid, "comm", text, sizeof(text)) ||
	    strcmp(text, "fsdp-worker\n") != 0 || !is_leader(pid))
		return false;
	memset(text, 0, sizeof(text));
	if (!read_file(pid, "environ", text, sizeof(text)))
		return false;
	for (size_t i = 0; i + n < sizeof(text); i++) {
		if (memcmp(text + i, plan, n) == 0)
			return true;
	}
	return false;
}

/* Returns whether the worker has received memory to which it can write. */
static bool has_chunks(pid_t pid)
{
	char path[64], line[512];
	bool is_found = false;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
	file = fopen(path, "re");
	while (file && !is_found && fgets(line, sizeof(line), file))
		is_found = strstr(line, "/memfd:") != NULL;
	if (file)
		fclose(file);
	return is_found;
}

struct workers workers_count(const char *plan)
{
	struct workers count = {0, 0};
	DIR *dir = opendir("/proc");
	struct dirent *entry;
	pid_t pid;

	must(dir);
	while ((entry = readdir(dir))) {
		pid = (pid_t)atoi(entry->d_name);
		if (pid == 0 || !is_worker(pid, plan))
			continue;
		count.n++;
		count.n_with_chunks += has_chunks(pid);
	}
	closedir(dir);
	return count;
}
