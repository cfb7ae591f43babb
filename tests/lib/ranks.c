/*
 * Ranks are actors. Notes are in shared memory, so the sentence of a rank
 * remains after the rank was killed.
 */
#include "tests/lib/ranks.h"
#include "tests/lib/chaos.h"
#include "tests/lib/memory.h"
#include "tests/lib/patience.h"
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>

static struct {
	uint32_t rank, world;
	struct rank_note *notes;
} self;

void ranks_start(struct ranks *ranks, uint32_t n)
{
	must(n <= RANKS_MAX);
	*ranks = (struct ranks){.n = n};
	ranks->notes = shared_memory(RANKS_MAX * sizeof(*ranks->notes));
	self.world = n;
	self.notes = ranks->notes;
	for (uint32_t rank = 0; rank < n; rank++) {
		self.rank = rank;
		actor_start(&ranks->actors[rank], NULL);
	}
}

void ranks_stop(struct ranks *ranks)
{
	for (uint32_t rank = 0; rank < ranks->n; rank++)
		actor_stop(&ranks->actors[rank]);
	if (ranks->notes)
		(void)munmap(ranks->notes, RANKS_MAX * sizeof(*ranks->notes));
	ranks->notes = NULL;
}

void ranks_begin(struct ranks *ranks, actor_fn *fn)
{
	for (uint32_t rank = 0; rank < ranks->n; rank++) {
		if (ranks->actors[rank].pid > 0)
			actor_begin(&ranks->actors[rank], fn);
	}
}

void ranks_end(struct ranks *ranks)
{
	for (uint32_t rank = 0; rank < ranks->n; rank++) {
		if (ranks->actors[rank].pid > 0)
			ranks->notes[rank].code =
				actor_end(&ranks->actors[rank]);
	}
}

int ranks_run(struct ranks *ranks, actor_fn *fn)
{
	struct rank_note *note;

	ranks_begin(ranks, fn);
	ranks_end(ranks);
	for (uint32_t rank = 0; rank < ranks->n; rank++) {
		note = &ranks->notes[rank];
		if (ranks->actors[rank].pid <= 0 || note->code == 0)
			continue;
		fprintf(stderr, "rank %u: %d: %s\n", rank, note->code,
			note->sentence);
		return note->code;
	}
	return 0;
}

int rank_run(struct ranks *ranks, uint32_t rank, actor_fn *fn)
{
	return actor_run(&ranks->actors[rank], fn);
}

/* Returns a number that grows when the process runs, or -1 if it is neither
 * stopped nor asleep on a futex. */
static long read_sleeps(pid_t pid)
{
	char path[64], line[128], state = '?';
	long call = -1, n = -1;
	FILE *file;

	(void)snprintf(path, sizeof(path), "/proc/%d/syscall", (int)pid);
	file = fopen(path, "re");
	must(file);
	if (fscanf(file, "%ld", &call) != 1)
		call = -1;
	(void)fclose(file);
	(void)snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	file = fopen(path, "re");
	must(file);
	while (fgets(line, sizeof(line), file)) {
		(void)sscanf(line, "State: %c", &state);
		(void)sscanf(line, "voluntary_ctxt_switches: %ld", &n);
	}
	(void)fclose(file);
	return state == 'T' || (state == 'S' && call == SYS_futex) ? n : -1;
}

/* If no rank has run between two looks, all of them were still at the same
 * time. A wait of the library wakes up now and then, so the next look follows
 * immediately. */
void ranks_await_still(const struct ranks *ranks, uint32_t n)
{
	long last[RANKS_MAX] = {0}, now;
	bool are_still = false;

	while (!are_still) {
		are_still = true;
		for (uint32_t i = 0; i < n; i++) {
			now = read_sleeps(ranks->actors[i].pid);
			are_still = are_still && now >= 0 && now == last[i];
			last[i] = now;
			if (now < 0)
				nap_ms(1);
		}
	}
}

uint32_t rank_self(void)
{
	return self.rank;
}

uint32_t rank_world(void)
{
	return self.world;
}

int rank_say(int r, const char *sentence)
{
	struct rank_note *note = &self.notes[self.rank];

	if (r < 0)
		snprintf(note->sentence, sizeof(note->sentence), "%s",
			 sentence);
	return r;
}

int rank_note(int r)
{
	return rank_say(r, fsdp_error());
}

bool runs_go_on(void)
{
	return !are_on_devices() && !getenv("FSDP_TEST_EXECUTOR");
}

/* --- worker -------------------------------------------------------------- */

static bool is_worker(pid_t pid)
{
	char path[64], name[32] = "";
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/comm", (int)pid);
	file = fopen(path, "r");
	if (!file)
		return false;
	if (!fgets(name, sizeof(name), file))
		name[0] = '\0';
	fclose(file);
	return strncmp(name, "fsdp-worker", 11) == 0;
}

pid_t worker_pid(const struct daemon *daemon)
{
	pid_t broker = daemon_broker_pid(daemon);
	char path[64];
	int pid = 0;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)broker,
		 (int)broker);
	file = fopen(path, "r");
	/* a planned death has killed the broker, and its successor has not
	 * started yet */
	if (!file)
		return 0;
	while (fscanf(file, "%d", &pid) == 1 && !is_worker(pid))
		pid = 0;
	fclose(file);
	return pid > 0 && is_worker(pid) ? pid : 0;
}

pid_t worker_await(const struct daemon *daemon)
{
	pid_t pid = 0;

	for (int i = 0; !pid && i < PATIENCE_MS; i++) {
		pid = worker_pid(daemon);
		if (!pid)
			nap_ms(1);
	}
	must(pid);
	return pid;
}

/* --- status -------------------------------------------------------------- */

struct wanted {
	const char *name;
	uint64_t value;
	bool is_found;
};

static int note_value(const char *name, uint64_t value, void *data)
{
	struct wanted *wanted = data;

	if (strcmp(name, wanted->name) != 0)
		return 0;
	wanted->value = value;
	wanted->is_found = true;
	return 0;
}

uint64_t status_value(struct fsdp_client *client, const char *name)
{
	struct wanted wanted = {.name = name};

	must(fsdp_status(client, note_value, &wanted, NULL) == 0);
	if (!wanted.is_found)
		fprintf(stderr, "status has no value \"%s\"\n", name);
	must(wanted.is_found);
	return wanted.value;
}

bool status_await(struct fsdp_client *client, const char *name,
		  uint64_t expected)
{
	uint64_t value = 0;

	for (int i = 0; i < PATIENCE_MS; i++) {
		value = status_value(client, name);
		if (value == expected)
			return true;
		nap_ms(1);
	}
	fprintf(stderr, "%s is %llu, not %llu\n", name,
		(unsigned long long)value, (unsigned long long)expected);
	return false;
}
