/*
 * For LD_PRELOAD: makes a process seem protected from the kernel's OOM killer,
 * on machines where a test may not protect one. The process reads its
 * oom_score_adj, and writes it, as a lower value than it is.
 */
#include "tests/fakes/oom_score.h"
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef ssize_t pread_fn(int fd, void *data, size_t size, off_t offset);
typedef ssize_t pwrite_fn(int fd, const void *data, size_t size, off_t offset);

__attribute__((visibility("default"))) pread_fn pread;
__attribute__((visibility("default"))) pwrite_fn pwrite;

static bool is_score(int fd)
{
	char path[32], file[64];
	ssize_t n;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	n = readlink(path, file, sizeof(file) - 1);
	file[n < 0 ? 0 : n] = '\0';
	return strstr(file, "/oom_score_adj") != NULL;
}

ssize_t pread(int fd, void *data, size_t size, off_t offset)
{
	pread_fn *next;
	ssize_t n;

	*(void **)&next = dlsym(RTLD_NEXT, "pread");
	n = next(fd, data, size, offset);
	if (n > 0 && is_score(fd))
		n = snprintf(data, size, "%d\n", atoi(data) - OOM_SCORE_LESS);
	return n;
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset)
{
	pwrite_fn *next;
	char text[16];

	*(void **)&next = dlsym(RTLD_NEXT, "pwrite");
	if (!is_score(fd))
		return next(fd, data, size, offset);
	snprintf(text, sizeof(text), "%d", atoi(data) + OOM_SCORE_LESS);
	return next(fd, text, strlen(text), offset) < 0 ? -1 : (ssize_t)size;
}
