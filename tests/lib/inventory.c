/*
 * Lists what a process has open and mapped, one line of text each, in order.
 * The lines leave out what differs between two brokers that have the same.
 */
#include "tests/lib/inventory.h"
#include "tests/lib/chaos.h"
#include "tests/lib/patience.h"
#include <dirent.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void add(struct inventory *inventory, const char *kind, const char *what)
{
	char *line;

	must(inventory->n < 512);
	must(asprintf(&line, "%s %s", kind, what) > 0);
	inventory->lines[inventory->n++] = line;
}

/* Returns what two brokers have in common: "socket:" of "socket:[123]", and the
 * last part of a path in /proc, which contains the number of a process. */
static const char *name_of(char *target)
{
	if (strncmp(target, "/proc/", 6) == 0)
		return strrchr(target, '/') + 1;
	if (strncmp(target, "socket:", 7) == 0 ||
	    strncmp(target, "pipe:", 5) == 0)
		target[strcspn(target, "[")] = '\0';
	return target;
}

static void add_descriptors(pid_t pid, struct inventory *inventory)
{
	char path[64], target[256];
	struct dirent *entry;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	dir = opendir(path);
	while (dir && (entry = readdir(dir))) {
		ssize_t n;

		if (*entry->d_name == '.')
			continue;
		n = readlinkat(dirfd(dir), entry->d_name, target,
			       sizeof(target) - 1);
		target[n < 0 ? 0 : n] = '\0';
		add(inventory, "descriptor", name_of(target));
	}
	if (dir)
		closedir(dir);
}

/* Private mappings are left out. They are libraries, heaps and stacks, which
 * libc keeps. */
static void add_mappings(pid_t pid, struct inventory *inventory)
{
	char path[64], text[512], flags[8], name[256];
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
	file = fopen(path, "re");
	while (file && fgets(text, sizeof(text), file)) {
		*name = '\0';
		if (sscanf(text, "%*s %7s %*s %*s %*s %255[^\n]", flags,
			   name) >= 1 &&
		    flags[3] == 's')
			add(inventory, "mapping", name);
	}
	if (file)
		fclose(file);
}

static int compare(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static void take(pid_t pid, struct inventory *ret)
{
	ret->n = 0;
	add_descriptors(pid, ret);
	add_mappings(pid, ret);
	qsort(ret->lines, ret->n, sizeof(ret->lines[0]), compare);
}

void inventory_drop(struct inventory *inventory)
{
	for (size_t i = 0; i < inventory->n; i++)
		free(inventory->lines[i]);
	inventory->n = 0;
}

/* Both lists are sorted. */
static size_t count_differences(const struct inventory *a,
				const struct inventory *b, bool is_printed)
{
	size_t i = 0, j = 0, n = 0;

	while (i < a->n || j < b->n) {
		int order = i == a->n   ? 1
			    : j == b->n ? -1
					: strcmp(a->lines[i], b->lines[j]);

		n += order != 0;
		if (order != 0 && is_printed)
			fprintf(stderr, "%s: %s\n",
				order < 0 ? "is missing" : "is left",
				order < 0 ? a->lines[i] : b->lines[j]);
		i += order <= 0;
		j += order >= 0;
	}
	return n;
}

/* The broker keeps the pidfds of clients that have died for a second
 * (broker/session/death.h). */
#define SETTLE_MS 2000

void inventory_settle(const struct daemon *daemon, struct inventory *ret)
{
	pid_t pid = daemon_broker_pid(daemon);
	struct inventory now = {.n = 0};

	take(pid, ret);
	for (int i = 0; i < SETTLE_MS / 10; i++) {
		nap_ms(10);
		take(pid, &now);
		if (count_differences(ret, &now, false) > 0)
			i = 0;
		inventory_drop(ret);
		*ret = now;
	}
}

bool inventory_await(const struct daemon *daemon,
		     const struct inventory *expected)
{
	struct inventory now = {.n = 0};
	size_t n = 1;

	for (int i = 0; n > 0 && i < PATIENCE_MS / 10; i++) {
		inventory_drop(&now);
		nap_ms(10);
		take(daemon_broker_pid(daemon), &now);
		n = count_differences(expected, &now, false);
	}
	(void)count_differences(expected, &now, true);
	inventory_drop(&now);
	return n == 0;
}

uint64_t inventory_chunk_bytes(pid_t supervisor)
{
	char path[300], target[256];
	uint64_t sum = 0;
	struct dirent *entry;
	struct stat status;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)supervisor);
	dir = opendir(path);
	while (dir && (entry = readdir(dir))) {
		ssize_t n = readlinkat(dirfd(dir), entry->d_name, target,
				       sizeof(target) - 1);

		target[n < 0 ? 0 : n] = '\0';
		if ((strstr(target, "memfd:fsdp-chunk") ||
		     strstr(target, "memfd:fsdp-bundle")) &&
		    fstatat(dirfd(dir), entry->d_name, &status, 0) == 0)
			sum += (uint64_t)status.st_size;
	}
	if (dir)
		closedir(dir);
	return sum;
}
