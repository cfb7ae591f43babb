/*
 * The search through /proc/PID/maps for the process that maps a file. It only
 * improves an error message, so it is bounded, by work instead of time: its
 * result does not depend on the load of the machine.
 */
#include "broker/base/mapper.h"
#include "broker/base/process.h"
#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define MAX_LINES 1000000 /* lines of all processes together */

struct search {
	struct stat file;
	uid_t uid;
	uint32_t n_left; /* lines that may still be read */
};

/* Parses a line of maps: "start-end rw-s offset major:minor inode path". */
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

static bool maps_file(struct search *search, pid_t pid)
{
	char path[64], line[512];
	bool is_found = false;
	FILE *maps;

	snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
	maps = fopen(path, "re");
	if (!maps)
		return false;
	while (!is_found && search->n_left > 0 &&
	       fgets(line, sizeof(line), maps)) {
		is_found = is_mapping(search, line);
		search->n_left--;
	}
	fclose(maps);
	return is_found;
}

static bool is_looked_at(const struct search *search, pid_t pid)
{
	struct stat status;
	char path[32];

	snprintf(path, sizeof(path), "/proc/%d", (int)pid);
	return stat(path, &status) == 0 &&
	       (status.st_uid == search->uid || status.st_uid == 0);
}

/* Searches the processes. Returns 0 if none of them maps the file. */
static pid_t find(struct search *search, pid_t first)
{
	struct dirent *entry;
	pid_t found = 0;
	DIR *proc;

	if (first > 0 && maps_file(search, first))
		return first;
	proc = opendir("/proc");
	if (!proc)
		return 0;
	while (found == 0 && search->n_left > 0 && (entry = readdir(proc))) {
		pid_t pid = (pid_t)strtol(entry->d_name, NULL, 10);

		if (pid > 0 && is_looked_at(search, pid) &&
		    maps_file(search, pid))
			found = pid;
	}
	closedir(proc);
	return found;
}

bool mapper_find(int fd, const struct mapper_suspect *suspect, char *ret,
		 size_t size)
{
	struct search search = {.uid = suspect->uid, .n_left = MAX_LINES};
	char command[PROCESS_COMMAND_SIZE];
	pid_t pid = 0;

	if (fstat(fd, &search.file) == 0)
		pid = find(&search, suspect->pid);
	if (pid == 0)
		return false;
	process_command(pid, command);
	snprintf(ret, size, "process %d (%s)", (int)pid, command);
	return true;
}
