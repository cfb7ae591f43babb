/*
 * Lowers the limit of the broker's memory cgroup to the memory that it uses
 * now.
 *
 * The kernel then kills a process of the cgroup when one needs another page.
 * It kills the broker, whose score is raised, and not the supervisor, which
 * keeps all descriptors. The limit is raised again when the broker has died.
 */
#include "tests/chaos/storm.h"
#include <errno.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>

#define SPARE (UINT64_C(1) << 18)

static const struct hierarchy {
	const char *root, *limit, *usage, *none;
} hierarchies[] = {
	{"/sys/fs/cgroup/memory", "memory.limit_in_bytes",
	 "memory.usage_in_bytes", "-1"},
	{"/sys/fs/cgroup", "memory.max", "memory.current", "max"},
};

static const struct hierarchy *hierarchy; /* NULL if we may change none */
static char directory[96];

static bool put(const char *directory_, const char *file, const char *text)
{
	char path[160];
	FILE *stream;
	bool is_written;

	snprintf(path, sizeof(path), "%s/%s", directory_, file);
	stream = fopen(path, "we");
	if (!stream)
		return false;
	is_written = fputs(text, stream) >= 0;
	return fclose(stream) == 0 && is_written;
}

static bool put_number(const char *file, uint64_t number)
{
	char text[32];

	snprintf(text, sizeof(text), "%" PRIu64, number);
	return put(directory, file, text);
}

static bool set_score(pid_t pid, int score)
{
	char path[32], text[16];

	snprintf(path, sizeof(path), "/proc/%d", (int)pid);
	snprintf(text, sizeof(text), "%d", score);
	return put(path, "oom_score_adj", text);
}

static bool open_in(const struct hierarchy *in, const struct storm *storm)
{
	snprintf(directory, sizeof(directory), "%s/fsdp-chaos-%d", in->root,
		 (int)getpid());
	if (mkdir(directory, 0755) < 0)
		return false;
	hierarchy = in;
	if (put(directory, in->limit, in->none) &&
	    put_number("cgroup.procs", (uint64_t)storm->chaos.daemon.pid))
		return true;
	cgroup_close();
	return false;
}

bool cgroup_open(const struct storm *storm)
{
	size_t n = sizeof(hierarchies) / sizeof(hierarchies[0]);

	for (size_t i = 0; i < n; i++) {
		if (open_in(&hierarchies[i], storm))
			return true;
	}
	return false;
}

/* The broker has ended. Its processes leave the cgroup a moment later. */
void cgroup_close(void)
{
	if (!hierarchy)
		return;
	for (int i = 0; rmdir(directory) < 0 && errno == EBUSY && i < 1000; i++)
		nap_ms(1);
	hierarchy = NULL;
}

static bool read_usage(uint64_t *ret)
{
	char path[160];
	FILE *file;
	bool is_read;

	snprintf(path, sizeof(path), "%s/%s", directory, hierarchy->usage);
	file = fopen(path, "re");
	if (!file)
		return false;
	is_read = fscanf(file, "%" SCNu64, ret) == 1;
	fclose(file);
	return is_read;
}

/* Wait until the broker has died, or the clients have continued for a while. */
static void await_end(struct storm *storm, pid_t broker)
{
	uint64_t end = atomic_load(&storm->soak->n_ops) + 400;

	for (int i = 0; i < 2000 && kill(broker, 0) == 0; i++) {
		if (atomic_load(&storm->soak->n_ops) >= end)
			break;
		storm_revive(storm);
		nap_ms(1);
	}
}

void limit_memory(struct storm *storm)
{
	pid_t broker = daemon_broker_pid(&storm->chaos.daemon), hoarder;
	uint64_t usage;

	if (!hierarchy || !broker_may_die(storm) || !set_score(broker, 1000))
		return;
	/* The kernel would reclaim pages of files, such as the log, first. (In
	 * the second version a lower limit alone reclaims them.) */
	(void)put(directory, "memory.force_empty", "0");
	if (!read_usage(&usage))
		return;
	usage += draw(&storm->chance, 8) * SPARE;
	if (!put_number(hierarchy->limit, usage))
		return;
	storm->tally.cgroups++;
	hoarder = hoarder_start(storm);
	await_end(storm, broker);
	must(put(directory, hierarchy->limit, hierarchy->none));
	storm->tally.out_of_memory += kill(broker, 0) < 0;
	hoarder_end(storm, hoarder);
}
