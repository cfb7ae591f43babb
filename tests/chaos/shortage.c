/*
 * Makes calls fail, fills the pool, and takes the broker's descriptors away.
 */
#include "tests/chaos/storm.h"
#include <dirent.h>
#include <errno.h>
#include <sys/resource.h>
#include <unistd.h>

void fail_calls(struct storm *storm)
{
	static const struct {
		const char *point;
		int number;
	} calls[] = {
		{"memfd.create", EMFILE},   {"memfd.map", ENOMEM},
		{"chunk.populate", ENOMEM}, {"chunk.punch", ENOMEM},
		{"arena.grow", ENOMEM},     {"session.files", EMFILE},
		{"hello.copy", EMFILE},     {"peer.pidfd", EMFILE},
		{"closer.thread", EAGAIN},  {"account.malloc", ENOMEM},
		{"fdstore.put", ENFILE},    {"deadline.malloc", ENOMEM},
		{"evict.malloc", ENOMEM},   {"limbo.malloc", ENOMEM},
		{"pool.malloc", ENOMEM},    {"engine.spawn", EAGAIN},
		{"session.groups", ENOMEM}, {"process.pidfd", EMFILE},
		{"pool.thread", EAGAIN},
	};
	uint32_t i = draw(&storm->chance, sizeof(calls) / sizeof(calls[0]));

	plan_failure(storm->chaos.failures, calls[i].point,
		     1 + draw(&storm->chance, 3), calls[i].number);
	storm->tally.failures++;
	storm_await(storm, draw(&storm->chance, 50));
}

/* --- a full pool --------------------------------------------------------- */

/* Allocate all memory, and keep it until this process is killed. */
static void hoard(void *data)
{
	const struct storm *storm = data;
	const struct fsdp_spec spec = {FSDP_U8, 1, {1 << 18}};
	struct fsdp_client *client = NULL;
	struct fsdp_tensor *tensor;
	struct fsdp_connect_options options = {.path = storm->soak->socket};

	if (fsdp_connect(&options, &client) < 0)
		_exit(SOAK_LOST);
	while (true) {
		if (fsdp_alloc(client, &spec, 1, NULL, 0, &tensor) < 0)
			nap_ms(1);
	}
}

pid_t hoarder_start(struct storm *storm)
{
	return child_start(hoard, storm);
}

void hoarder_end(struct storm *storm, pid_t pid)
{
	int end = child_kill(pid);

	must(end == SIGKILL || end == -SOAK_LOST);
	storm->tally.clients++;
}

void fill_pool(struct storm *storm)
{
	pid_t pid = hoarder_start(storm);

	storm_await(storm, 100 + draw(&storm->chance, 300));
	hoarder_end(storm, pid);
	storm->tally.hoards++;
}

/* --- descriptors --------------------------------------------------------- */

static unsigned int count_descriptors(pid_t pid)
{
	unsigned int n = 0;
	char path[64];
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	dir = opendir(path);
	while (dir && readdir(dir))
		n++;
	if (dir)
		closedir(dir);
	return n;
}

/* Lower the broker's limit of open files for a while. If the broker dies
 * meanwhile, the next one has its own limit. */
void limit_descriptors(struct storm *storm)
{
	pid_t pid = daemon_broker_pid(&storm->chaos.daemon);
	unsigned int n = count_descriptors(pid);
	struct rlimit limit, before;

	if (n == 0 || prlimit(pid, RLIMIT_NOFILE, NULL, &before) < 0)
		return;
	limit = before;
	limit.rlim_cur = n + draw(&storm->chance, 6);
	if (prlimit(pid, RLIMIT_NOFILE, &limit, NULL) < 0)
		return;
	storm->tally.limits++;
	storm_await(storm, 100);
	kill_client(storm);
	storm_await(storm, 100 + draw(&storm->chance, 200));
	must(prlimit(pid, RLIMIT_NOFILE, &before, NULL) == 0 || errno == ESRCH);
}
