/*
 * The functions that wait poll the broker's own figures. Only a failing test
 * reaches the limit of the polling.
 */
#include "tests/lib/chaos.h"
#include "tests/lib/memory.h"
#include "tests/lib/patience.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SMALL "[memory]\nchunk_min = 2M\n"

static const struct fsdp_spec PAGE = {FSDP_U64, 1, {512}};

void nap_ms(unsigned int ms)
{
	const struct timespec time = {ms / 1000, ms % 1000 * 1000000L};

	nanosleep(&time, NULL);
}

bool chaos_has_points(void)
{
#ifdef FSDP_TEST_POINTS
	return true;
#else
	return false;
#endif
}

void chaos_start(struct chaos *chaos, const char *config)
{
	char plan[80], points[80], failures[80];
	const char *env[] = {plan, points, failures, NULL};
	struct daemon_options options = {.is_supervised = true,
					 .config = config ? config : SMALL,
					 .env = env};

	strcpy(chaos->dir, "/tmp/fsdp-chaos-XXXXXX");
	must(mkdtemp(chaos->dir));
	snprintf(chaos->plan, sizeof(chaos->plan), "%s/plan", chaos->dir);
	snprintf(chaos->points, sizeof(chaos->points), "%s/points", chaos->dir);
	snprintf(chaos->failures, sizeof(chaos->failures), "%s/failures",
		 chaos->dir);
	snprintf(failures, sizeof(failures), "FSDP_FAIL_PLAN=%s",
		 chaos->failures);
	snprintf(plan, sizeof(plan), "FSDP_KILL_PLAN=%s", chaos->plan);
	snprintf(points, sizeof(points), "FSDP_POINTS_LOG=%s", chaos->points);
	daemon_start_with(&chaos->daemon, &options);
}

void chaos_stop(struct chaos *chaos)
{
	plan_drop(chaos->plan);
	plan_drop(chaos->failures);
	daemon_stop(&chaos->daemon);
	(void)unlink(chaos->points);
	(void)rmdir(chaos->dir);
}

struct fsdp_client *chaos_connect(const struct chaos *chaos)
{
	struct fsdp_connect_options options = {
		.path = daemon_socket(&chaos->daemon)};
	struct fsdp_client *client = NULL;

	must(fsdp_connect(&options, &client) == 0);
	return client;
}

/* --- points -------------------------------------------------------------- */

void passages_forget(const char *path)
{
	must(truncate(path, 0) == 0 || errno == ENOENT);
}

static void note_passage(struct passages *passages, const char *name)
{
	size_t i = 0;

	while (i < passages->n && strcmp(passages->list[i].name, name) != 0)
		i++;
	must(i < sizeof(passages->list) / sizeof(passages->list[0]));
	if (i == passages->n) {
		snprintf(passages->list[i].name, sizeof(passages->list[i].name),
			 "%s", name);
		passages->list[i].n = 0;
		passages->n++;
	}
	passages->list[i].n++;
}

void passages_read(const char *path, struct passages *ret)
{
	FILE *file = fopen(path, "re");
	char name[48];

	must(file);
	ret->n = 0;
	while (fscanf(file, "%47s", name) == 1)
		note_passage(ret, name);
	fclose(file);
}

/* The rename lets a process that reads the plan see either all of it or
 * nothing. */
void plan_write(const char *path, const char *lines)
{
	char fresh[64];
	FILE *file;

	snprintf(fresh, sizeof(fresh), "%s.new", path);
	file = fopen(fresh, "we");
	must(file);
	fputs(lines, file);
	fclose(file);
	must(rename(fresh, path) == 0);
}

void plan_death(const char *path, const char *point, unsigned int n)
{
	char line[64];

	snprintf(line, sizeof(line), "%s %u\n", point, n);
	plan_write(path, line);
}

void plan_failure(const char *path, const char *point, unsigned int n,
		  int number)
{
	char line[64];

	snprintf(line, sizeof(line), "%s %u %d\n", point, n, number);
	plan_write(path, line);
}

bool plan_is_done(const char *path)
{
	return access(path, F_OK) < 0;
}

void plan_drop(const char *path)
{
	(void)unlink(path);
}

/* --- errors -------------------------------------------------------------- */

bool is_shortage(int r)
{
	return r == -ENOMEM || r == -ENOSPC || r == -EMFILE || r == -ENFILE ||
	       r == -EDQUOT || r == -EAGAIN || r == -ETIMEDOUT;
}

bool is_lost(int r)
{
	return r == -ECONNRESET || r == -ECONNREFUSED || r == -ESTALE;
}

/* --- books --------------------------------------------------------------- */

static const struct {
	const char *name;
	size_t offset;
	bool is_compared;
} fields[] = {
#define FIELD(name, is_compared)                                               \
	{                                                                      \
#name, offsetof(struct figures, name), is_compared             \
	}
	FIELD(epoch, false),      FIELD(supervised, false),
	FIELD(pid, false),        FIELD(sessions, true),
	FIELD(slots, true),       FIELD(slots_limbo, true),
	FIELD(blocks, true),      FIELD(bundles, true),
	FIELD(tickets, true),     FIELD(grants, true),
	FIELD(bytes_live, true),  FIELD(chunks, true),
	FIELD(chunk_bytes, true),
#undef FIELD
};

#define N_FIELDS (sizeof(fields) / sizeof(fields[0]))

static uint64_t *field(const struct figures *figures, size_t i)
{
	return (uint64_t *)((char *)figures + fields[i].offset);
}

/* The figures, and the values that are added to them. */
struct reading {
	struct figures figures;
	uint64_t device_bytes_live, device_chunk_bytes;
};

static bool ends_with(const char *text, const char *end)
{
	size_t n = strlen(text), n_end = strlen(end);

	return n >= n_end && strcmp(text + n - n_end, end) == 0;
}

static int take_value(const char *name, uint64_t value, void *data)
{
	struct reading *reading = data;

	for (size_t i = 0; i < N_FIELDS; i++) {
		if (strcmp(fields[i].name, name) == 0)
			*field(&reading->figures, i) = value;
	}
	if (strcmp(name, "device_bytes_live") == 0)
		reading->device_bytes_live = value;
	/* the counter of a device, GPU-... */
	else if (ends_with(name, "_chunk_bytes"))
		reading->device_chunk_bytes += value;
	return 0;
}

void figures_read(struct fsdp_client *client, struct figures *ret)
{
	struct reading reading = {.device_bytes_live = 0};

	memset(&reading.figures, 0xff, sizeof(reading.figures));
	must(fsdp_status(client, take_value, &reading, NULL) == 0);
	for (size_t i = 0; i < N_FIELDS; i++)
		must(*field(&reading.figures, i) != UINT64_MAX);
	*ret = reading.figures;
	ret->bytes_live += reading.device_bytes_live;
	ret->chunk_bytes += reading.device_chunk_bytes;
}

static bool differs(const struct figures *now, const struct figures *expected,
		    size_t i)
{
	return fields[i].is_compared && *field(expected, i) != FIGURE_ANY &&
	       *field(now, i) != *field(expected, i);
}

static bool is_same(const struct figures *now, const struct figures *expected)
{
	for (size_t i = 0; i < N_FIELDS; i++) {
		if (differs(now, expected, i))
			return false;
	}
	return true;
}

bool figures_await(struct fsdp_client *client, const struct figures *expected)
{
	struct figures now;

	for (int i = 0; i < PATIENCE_MS; i++) {
		figures_read(client, &now);
		if (is_same(&now, expected))
			return true;
		nap_ms(1);
	}
	for (size_t i = 0; i < N_FIELDS; i++) {
		if (differs(&now, expected, i))
			fprintf(stderr, "%s is %llu, not %llu\n",
				fields[i].name,
				(unsigned long long)*field(&now, i),
				(unsigned long long)*field(expected, i));
	}
	return false;
}

/* The broker gives its supervisor memfds and devices' memory, which the fake
 * driver keeps in files. */
static bool is_kept(const char *target)
{
	return strncmp(target, "/memfd:", 7) == 0 ||
	       strncmp(target, "/dev/shm/fsdp-gpu-", 18) == 0;
}

static uint64_t count_memfds(pid_t pid)
{
	char path[64], target[64];
	uint64_t n_found = 0;
	struct dirent *entry;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	dir = opendir(path);
	while (dir && (entry = readdir(dir))) {
		ssize_t n = readlinkat(dirfd(dir), entry->d_name, target,
				       sizeof(target) - 1);

		if (n < 0)
			continue;
		target[n] = '\0';
		n_found += is_kept(target);
	}
	if (dir)
		closedir(dir);
	return n_found;
}

bool keeps_await(const struct chaos *chaos, uint64_t n)
{
	for (int i = 0; i < PATIENCE_MS; i++) {
		if (count_memfds(chaos->daemon.pid) == n)
			return true;
		nap_ms(1);
	}
	fprintf(stderr, "the supervisor keeps %llu files, not %llu\n",
		(unsigned long long)count_memfds(chaos->daemon.pid),
		(unsigned long long)n);
	return false;
}

static int add_holds(const struct fsdp_holder *holder, void *data)
{
	*(int64_t *)data += holder->holds;
	return 0;
}

int64_t count_holds(struct fsdp_client *client, const char *name)
{
	int64_t n = 0;

	must(fsdp_who(client, name, add_holds, &n) == 0);
	return n;
}

int64_t count_slot_holds(struct fsdp_client *client,
			 const struct fsdp_tensor *tensor)
{
	struct fsdp_info info = {.struct_size = sizeof(info)};
	int64_t n = 0;

	fsdp_tensor_info(tensor, &info);
	must(fsdp_who_slot(client, info.slot, info.generation, add_holds, &n) ==
	     0);
	return n;
}

struct names {
	/* has the name of a bundle once for all its members */
	char list[256][64];
	const char *pointers[256];
	size_t n;
	struct fsdp_client *client;
	entry_check_fn *check;
	struct figures sum; /* sums over the entries */
	bool are_right;
	uint64_t n_outside; /* entries that are in no bundle */
};

static int note_name(const struct fsdp_entry *entry, void *data)
{
	struct names *names = data;
	char *name = names->list[names->n];

	snprintf(name, sizeof(names->list[0]), "%s", entry->info->name);
	/* In these tests the part of a name before the last slash is its
	 * bundle. */
	if (entry->bundle)
		strrchr(name, '/')[1] = '\0';
	for (size_t i = 0; i < names->n; i++) {
		if (strcmp(names->list[i], name) == 0)
			return 0;
	}
	names->pointers[names->n] = name;
	return ++names->n == 256;
}

void remove_all(struct fsdp_client *client, const char *prefix)
{
	struct names names = {.n = 0};

	must(fsdp_list(client, prefix, note_name, &names) == 0);
	must(fsdp_remove(client, names.pointers, names.n) == 0);
}

static int audit_entry(const struct fsdp_entry *entry, void *data)
{
	const uint64_t align = are_on_devices() ? 512 : 64;
	struct names *names = data;
	size_t n = names->n;

	must(note_name(entry, data) == 0);
	names->sum.bundles += entry->bundle && names->n > n;
	names->n_outside += !entry->bundle;
	names->sum.slots++;
	names->sum.blocks++;
	names->sum.bytes_live += (entry->info->size + align - 1) & ~(align - 1);
	if (names->check(names->client, entry))
		return 0;
	fprintf(stderr, "%s, version %llu, has not its contents\n",
		entry->info->name, (unsigned long long)entry->info->version);
	names->are_right = false;
	return 0;
}

struct prefix_sums {
	uint64_t names, bundles;
};

static int add_prefix(const struct fsdp_prefix *prefix, void *data)
{
	struct prefix_sums *sums = data;

	sums->names += prefix->n_names;
	sums->bundles += prefix->n_bundles;
	return 0;
}

/* The sums over prefixes must match what was listed. */
static bool audit_prefixes(const struct names *names)
{
	struct prefix_sums sums = {0};

	must(fsdp_prefixes(names->client, add_prefix, &sums) == 0);
	if (sums.names == names->n_outside &&
	    sums.bundles == names->sum.bundles)
		return true;
	fprintf(stderr,
		"prefixes count %llu names of %llu and %llu bundles of %llu\n",
		(unsigned long long)sums.names,
		(unsigned long long)names->n_outside,
		(unsigned long long)sums.bundles,
		(unsigned long long)names->sum.bundles);
	return false;
}

bool audit(struct fsdp_client *client, entry_check_fn *check)
{
	struct figures alone;
	struct names names = {.client = client,
			      .check = check,
			      .are_right = true,
			      .sum = {.sessions = 1,
				      .grants = FIGURE_ANY,
				      .chunks = FIGURE_ANY,
				      .chunk_bytes = FIGURE_ANY}};

	/* The broker releases everything that belongs to a session before it
	 * ends the session. */
	memset(&alone, 0xff, sizeof(alone));
	alone.sessions = 1;
	if (!figures_await(client, &alone))
		return false;
	must(fsdp_list(client, NULL, audit_entry, &names) == 0);
	return figures_await(client, &names.sum) && audit_prefixes(&names) &&
	       names.are_right;
}

/* --- contents ------------------------------------------------------------ */

static uint64_t mix(uint64_t x)
{
	x += UINT64_C(0x9e3779b97f4a7c15);
	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return x ^ x >> 31;
}

uint64_t pattern_tag(const char *name, uint64_t version)
{
	uint64_t tag = mix(version);

	for (; *name; name++)
		tag = mix(tag ^ (uint64_t)(unsigned char)*name);
	return tag;
}

static size_t count_words(const struct fsdp_tensor *tensor)
{
	struct fsdp_info info = {.struct_size = sizeof(info)};

	fsdp_tensor_info(tensor, &info);
	return info.size / sizeof(uint64_t);
}

static int read_pattern(size_t i, void *into, size_t size, void *data)
{
	const uint64_t *tag = data;
	uint64_t *words = into;

	(void)i;
	for (size_t j = 0; j < size / sizeof(*words); j++)
		words[j] = mix(*tag + j);
	return 0;
}

void pattern_fill(struct fsdp_tensor *tensor, uint64_t tag)
{
	must(fsdp_data_mut(tensor));
	must(fsdp_fill(&tensor, 1, read_pattern, &tag) == 0);
}

static bool is_pattern(const struct fsdp_tensor *tensor, uint64_t tag,
		       size_t first)
{
	const uint64_t *words = fsdp_data(tensor);
	size_t n = count_words(tensor);
	uint64_t *copy = NULL;
	bool is_right = n > first;

	if (are_on_devices()) {
		words = copy = calloc(n, sizeof(*words));
		must(copy);
		memory_read(copy, tensor, 0, n * sizeof(*words));
	}
	for (size_t i = first; i < n && is_right; i++)
		is_right = words[i] == mix(tag + i);
	free(copy);
	return is_right;
}

bool pattern_is(const struct fsdp_tensor *tensor, uint64_t tag)
{
	return is_pattern(tensor, tag, 0);
}

bool pattern_follows(const struct fsdp_tensor *tensor, uint64_t tag)
{
	return is_pattern(tensor, tag, 1);
}

struct fsdp_tensor *pattern_make(struct fsdp_client *client, uint64_t tag)
{
	struct fsdp_tensor *tensor = NULL;

	must(memory_alloc(client, &PAGE, 1, NULL, 0, &tensor) == 0);
	pattern_fill(tensor, tag);
	return tensor;
}

void pattern_put(struct fsdp_client *client, const char *name, uint64_t version)
{
	struct fsdp_publication it = {
		.tensor = pattern_make(client, pattern_tag(name, version)),
		.name = name,
		.flags = FSDP_REPLACE};

	must(fsdp_publish(client, &it, 1) == 0);
	must(it.version == version);
	fsdp_free(it.tensor);
}

bool pattern_is_published(struct fsdp_client *client, const char *name,
			  uint64_t version)
{
	struct fsdp_tensor *tensor = NULL;
	struct fsdp_info info = {.struct_size = sizeof(info)};
	bool is_right;

	must(fsdp_get(client, &name, 1, NULL, &tensor) == 0);
	fsdp_tensor_info(tensor, &info);
	is_right = info.version == version &&
		   pattern_is(tensor, pattern_tag(name, version));
	fsdp_free(tensor);
	return is_right;
}

/* --- processes ----------------------------------------------------------- */

pid_t child_start(child_fn *fn, void *data)
{
	pid_t parent = getpid();
	pid_t pid = fork();

	must(pid >= 0);
	if (pid > 0)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(1);
	fn(data);
	_exit(0);
}

int child_wait(pid_t pid)
{
	int status;

	must(waitpid(pid, &status, 0) == pid);
	return WIFSIGNALED(status) ? WTERMSIG(status) : -WEXITSTATUS(status);
}

int child_kill(pid_t pid)
{
	must(kill(pid, SIGKILL) == 0);
	return child_wait(pid);
}

bool child_run(child_fn *fn, void *data)
{
	return child_wait(child_start(fn, data)) == 0;
}

void *shared_memory(size_t size)
{
	void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE,
			    MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	must(memory != MAP_FAILED);
	return memory;
}
