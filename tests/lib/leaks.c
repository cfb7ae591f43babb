#include "tests/lib/leaks.h"
#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_HELD 4096

/* The resources of a process, as one line of text each. */
struct held {
	char *lines[MAX_HELD];
	size_t n;
};

static struct held before;

static void add(struct held *held, char *line)
{
	if (held->n == MAX_HELD || !line) {
		(void)fprintf(stderr, "leaks: the process has too much\n");
		abort();
	}
	held->lines[held->n++] = line;
}

/* A driver keeps its files and mappings until the process ends. The fake finds
 * leaks of device memory itself. */
static bool is_of_driver(const char *line)
{
	return strstr(line, "/dev/shm/fsdp-gpu-") ||
	       strstr(line, "/dev/nvidia");
}

static void list_descriptors(struct held *held)
{
	DIR *dir = opendir("/proc/self/fd");
	char path[64], target[256], *line;
	struct dirent *entry;

	while (dir && (entry = readdir(dir))) {
		ssize_t n;

		if (*entry->d_name == '.' || atoi(entry->d_name) == dirfd(dir))
			continue;
		(void)snprintf(path, sizeof(path), "/proc/self/fd/%.16s",
			       entry->d_name);
		n = readlink(path, target, sizeof(target) - 1);
		target[n < 0 ? 0 : n] = '\0';
		if (is_of_driver(target))
			continue;
		if (asprintf(&line, "descriptor %s: %s", entry->d_name,
			     target) < 0)
			line = NULL;
		add(held, line);
	}
	if (dir)
		closedir(dir);
}

/* Private mappings are libraries, heaps and stacks, which the C library
 * keeps. */
static void list_mappings(struct held *held)
{
	FILE *file = fopen("/proc/self/maps", "re");
	char text[512], flags[8], *line;

	while (file && fgets(text, sizeof(text), file)) {
		if (sscanf(text, "%*s %7s", flags) != 1 || flags[3] != 's' ||
		    is_of_driver(text))
			continue;
		text[strcspn(text, "\n")] = '\0';
		if (asprintf(&line, "mapping %s", text) < 0)
			line = NULL;
		add(held, line);
	}
	if (file)
		(void)fclose(file);
}

static void list_children(struct held *held)
{
	char path[64], pid[32], *line;
	FILE *file;

	(void)snprintf(path, sizeof(path), "/proc/self/task/%d/children",
		       (int)getpid());
	file = fopen(path, "re");
	while (file && fscanf(file, "%31s", pid) == 1) {
		if (asprintf(&line, "child process %s", pid) < 0)
			line = NULL;
		add(held, line);
	}
	if (file)
		(void)fclose(file);
}

static void list(struct held *held)
{
	list_descriptors(held);
	list_mappings(held);
	list_children(held);
}

static bool has(const struct held *held, const char *line)
{
	for (size_t i = 0; i < held->n; i++) {
		if (strcmp(held->lines[i], line) == 0)
			return true;
	}
	return false;
}

void leaks_begin(void)
{
	list(&before);
}

void leaks_check(void)
{
	struct held after = {.n = 0};
	size_t n = 0;

	list(&after);
	for (size_t i = 0; i < after.n; i++) {
		if (!has(&before, after.lines[i])) {
			(void)fprintf(stderr, "leaked: %s\n", after.lines[i]);
			n++;
		}
		free(after.lines[i]);
	}
	if (n > 0)
		abort();
	for (size_t i = 0; i < before.n; i++)
		free(before.lines[i]);
	before.n = 0;
}
