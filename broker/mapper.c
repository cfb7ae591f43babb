/*
 * Mappers: the search through /proc/PID/maps. It runs in the broker's loop, so
 * it is bounded in time; it only serves the sentence of a refusal.
 */
#include "broker/mapper.h"
#include <dirent.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#define TIME_LIMIT_NS INT64_C(20000000)

struct search {
	struct stat file;
	int64_t end_ns;
};

static int64_t clock_ns(void)
{
	struct timespec now;

	(void)clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* A line of maps: "start-end rw-s offset major:minor inode path". */
static bool is_mapping(const struct search *search, const char *line)
{
	unsigned int major_number, minor_number;
	uint64_t inode;
	char mode[5];

	if (sscanf(line, "%*x-%*x %4s %*x %x:%x %" SCNu64, mode, &major_number,
		   &minor_number, &inode) != 4)
		return false;
	return mode[1] == 'w' && mode[3] == 's' &&
	       inode == search->file.st_ino &&
	       major_number == major(search->file.st_dev) &&
	       minor_number == minor(search->file.st_dev);
}

static bool maps_file(const struct search *search, pid_t pid)
{
	char path[64], line[512];
	bool is_found = false;
	FILE *maps;

	snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
	maps = fopen(path, "re");
	if (!maps)
		return false;
	while (!is_found && clock_ns() < search->end_ns &&
	       fgets(line, sizeof(line), maps))
		is_found = is_mapping(search, line);
	fclose(maps);
	return is_found;
}

/* 0: none. */
static pid_t find(const struct search *search, pid_t first)
{
	struct dirent *entry;
	pid_t found = 0;
	DIR *proc;

	if (first > 0 && maps_file(search, first))
		return first;
	proc = opendir("/proc");
	if (!proc)
		return 0;
	while (found == 0 && clock_ns() < search->end_ns &&
	       (entry = readdir(proc))) {
		pid_t pid = (pid_t)strtol(entry->d_name, NULL, 10);

		if (pid > 0 && maps_file(search, pid))
			found = pid;
	}
	closedir(proc);
	return found;
}

static void read_command(pid_t pid, char *ret, size_t size)
{
	char path[64];
	FILE *file;

	snprintf(ret, size, "?");
	snprintf(path, sizeof(path), "/proc/%d/comm", (int)pid);
	file = fopen(path, "re");
	if (!file)
		return;
	if (fgets(ret, (int)size, file))
		ret[strcspn(ret, "\n")] = '\0';
	fclose(file);
	/* It calls itself what it likes, and this is for a terminal. */
	for (char *at = ret; *at; at++) {
		if (*at < ' ' || *at > '~')
			*at = '?';
	}
}

void mapper_describe(int fd, pid_t first, char *ret, size_t size)
{
	struct search search = {.end_ns = clock_ns() + TIME_LIMIT_NS};
	char command[32];
	pid_t pid = 0;

	if (fstat(fd, &search.file) == 0)
		pid = find(&search, first);
	if (pid == 0) {
		snprintf(ret, size, "some process");
		return;
	}
	read_command(pid, command, sizeof(command));
	snprintf(ret, size, "process %d (%s)", (int)pid, command);
}
