#include "tests/fuzz/scratch.h"
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[] = "/dev/shm/fsdp-fuzz-XXXXXX";

static int remove_one(const char *path, const struct stat *status, int kind,
		      struct FTW *at)
{
	(void)status;
	(void)kind;
	(void)at;
	return remove(path);
}

static void remove_folder(void)
{
	(void)nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

const char *scratch_folder(void)
{
	static int is_made;

	if (!is_made && (!mkdtemp(folder) || atexit(remove_folder) != 0))
		abort();
	is_made = 1;
	return folder;
}

const char *scratch_path(const char *name)
{
	static char path[256];

	if (snprintf(path, sizeof(path), "%s/%s", scratch_folder(), name) >=
	    (int)sizeof(path))
		abort();
	return path;
}

static void make_folder(const char *name)
{
	const char *slash = strchr(name, '/');
	char first[64];

	if (!slash)
		return;
	(void)snprintf(first, sizeof(first), "%.*s", (int)(slash - name), name);
	if (mkdir(scratch_path(first), 0700) < 0 && errno != EEXIST)
		abort();
}

void scratch_write(const char *name, const uint8_t *data, size_t size)
{
	int fd;

	make_folder(name);
	fd = open(scratch_path(name), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC,
		  0600);
	if (fd < 0 || write(fd, data, size) != (ssize_t)size || close(fd) < 0)
		abort();
}
