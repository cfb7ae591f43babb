/*
 * The devices of one test. With the fake driver, its processes share a folder.
 * Criterion runs each test in a process of its own, so each can set other
 * options of the fake (FAKECUDA_...) before its first call of the driver. A
 * real driver ignores all of them, and a test that depends on one begins with
 * need_fake().
 *
 *	TestSuite(vmm, .init = gpu_open, .fini = gpu_close);
 */
#pragma once
#include <criterion/criterion.h>
#include <dirent.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static inline void gpu_open(void)
{
	char dir[] = "/dev/shm/fsdp-gpu-XXXXXX";

	cr_assert(mkdtemp(dir) != NULL, "no folder for the devices");
	setenv("FAKECUDA_DIR", dir, 1);
}

static inline void gpu_close(void)
{
	const char *path = getenv("FAKECUDA_DIR");
	DIR *dir = path ? opendir(path) : NULL;

	if (!path)
		return;
	for (struct dirent *entry; dir && (entry = readdir(dir));)
		(void)unlinkat(dirfd(dir), entry->d_name, 0);
	if (dir)
		closedir(dir);
	(void)rmdir(path);
}

/* Is the driver a fake? This does not load it, because a loaded driver would
 * not survive a fork(). */
static inline bool is_fake(void)
{
	return getenv("FSDP_LIBCUDA");
}

/* Skip the test. Its own teardown does not run, so this closes what it has
 * open. */
static inline void gpu_skip(const char *why)
{
	gpu_close();
	cr_skip_test("%s", why);
}

/* Skip the test on a real driver, where it cannot pass. `why` completes "needs
 * the fake driver: ". */
static inline void need_fake(const char *why)
{
	char text[128];

	if (is_fake())
		return;
	(void)snprintf(text, sizeof(text), "needs the fake driver: %s", why);
	gpu_skip(text);
}

/* Skip the test on a machine with fewer than `wanted` GPUs. The fake has
 * enough. */
static inline void need_gpus(uint32_t n, uint32_t wanted)
{
	char text[32];

	(void)snprintf(text, sizeof(text), "needs %u GPUs", wanted);
	if (n < wanted && !is_fake())
		gpu_skip(text);
	cr_assert(n >= wanted, "%u GPUs of %u", n, wanted);
}

/* Returns how often the process called a function of the driver ("MemCreate"),
 * or made "contexts". FAKECUDA_COUNT=1 must be set for it. Returns -1 if the
 * process called no function, or if the driver is a real one. */
static inline long gpu_count(pid_t pid, const char *what)
{
	char path[64], line[128], name[64];
	long n, found = -1;
	FILE *file;

	(void)snprintf(path, sizeof(path), "%s/calls.%d",
		       getenv("FAKECUDA_DIR"), (int)pid);
	file = fopen(path, "re");
	while (file && found < 0 && fgets(line, sizeof(line), file))
		if (sscanf(line, "%63s %ld", name, &n) == 2 &&
		    strcmp(name, what) == 0)
			found = n;
	if (file)
		(void)fclose(file);
	return found;
}

/* Has the process called the function so often? This is true for a real driver,
 * which does not count. */
static inline bool gpu_is_count(pid_t pid, const char *function, long n)
{
	long now = gpu_count(pid, function);

	return now < 0 || now == n;
}
