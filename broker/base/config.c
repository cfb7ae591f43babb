/*
 * Configuration: libinih parses sections, keys and values, a table describes
 * each key, and the machine determines defaults.
 */
#include "broker/base/config.h"
#include "proto/error.h"
#include "proto/name.h"
#include <errno.h>
#include <grp.h>
#include <ini.h>
#include <inttypes.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define KIB       UINT64_C(1024)
#define MIB       (KIB * 1024)
#define GIB       (MIB * 1024)
#define MIN_CHUNK (2 * MIB) /* one huge page */
#define MAX_SIZE  (UINT64_C(1) << 50)
#define MAX_TIME  (UINT64_C(1) << 40)
#define MAX_COUNT (UINT64_C(1) << 32)

/* --- values -------------------------------------------------------------- */

struct unit {
	const char *suffix;
	uint64_t factor;
};

static const struct unit sizes[] = {
	{"", 1},    {"K", KIB},        {"M", MIB},
	{"G", GIB}, {"T", GIB * 1024}, {NULL, 0},
};

static const struct unit times[] = {
	{"", 1},      {"ms", 1},      {"s", 1000},
	{"m", 60000}, {"h", 3600000}, {NULL, 0},
};

static const struct unit counts[] = {{"", 1}, {NULL, 0}};

/* Parse a whole number with one of `units`, at most `max`. */
static bool parse_number(const char *text, const struct unit *units,
			 uint64_t max, uint64_t *ret)
{
	const char *digit = text;
	uint64_t n = 0;

	/* strtoull() would accept signs and leading blanks. */
	for (; *digit >= '0' && *digit <= '9'; digit++) {
		n = n * 10 + (uint64_t)(*digit - '0');
		if (n > max)
			return false;
	}
	if (digit == text)
		return false;
	for (; units->suffix; units++) {
		if (strcmp(digit, units->suffix) != 0)
			continue;
		if (n > max / units->factor)
			return false;
		*ret = n * units->factor;
		return true;
	}
	return false;
}

enum { NAME_BUFFER_SIZE = 64 * 1024 };

static int find_user(const char *name, uint32_t *ret, struct error *err)
{
	char *buffer = malloc(NAME_BUFFER_SIZE);
	struct passwd entry, *found = NULL;
	uint64_t number;
	int r;

	if (!buffer)
		return error_set(err, -ENOMEM, "no memory to look up user %s",
				 name);
	r = -getpwnam_r(name, &entry, buffer, NAME_BUFFER_SIZE, &found);
	if (found)
		*ret = found->pw_uid;
	free(buffer);
	if (found)
		return 0;
	if (parse_number(name, counts, UINT32_MAX - 1, &number)) {
		*ret = (uint32_t)number;
		return 0;
	}
	if (r < 0)
		return error_errno(err, r, "look up user \"%s\"", name);
	return error_set(err, -EINVAL, "there is no user \"%s\"", name);
}

static int find_group(const char *name, uint32_t *ret, struct error *err)
{
	char *buffer = malloc(NAME_BUFFER_SIZE);
	struct group entry, *found = NULL;
	uint64_t number;
	int r;

	if (!buffer)
		return error_set(err, -ENOMEM, "no memory to look up group %s",
				 name);
	r = -getgrnam_r(name, &entry, buffer, NAME_BUFFER_SIZE, &found);
	if (found)
		*ret = found->gr_gid;
	free(buffer);
	if (found)
		return 0;
	if (parse_number(name, counts, UINT32_MAX - 1, &number)) {
		*ret = (uint32_t)number;
		return 0;
	}
	if (r < 0)
		return error_errno(err, r, "look up group \"%s\"", name);
	return error_set(err, -EINVAL, "there is no group \"%s\"", name);
}

/* --- machine ------------------------------------------------------------- */

/* MemTotal of /proc/meminfo, in bytes. */
static int machine_memory(uint64_t *ret, struct error *err)
{
	long pages = sysconf(_SC_PHYS_PAGES);
	long page_size = sysconf(_SC_PAGESIZE);

	if (pages <= 0 || page_size <= 0)
		return error_set(err, -EIO,
				 "cannot read how much memory the machine has");
	*ret = (uint64_t)pages * (uint64_t)page_size;
	return 0;
}

/* --- keys ---------------------------------------------------------------- */

enum key_kind { KEY_SIZE, KEY_TIME, KEY_COUNT, KEY_COUNT_1, KEY_SESSIONS };

static const struct {
	const struct unit *units;
	uint64_t min, max;
	const char *what;
} key_kinds[] = {
	[KEY_SIZE] = {sizes, 0, MAX_SIZE, "a size such as 512M or 16G"},
	[KEY_TIME] = {times, 0, MAX_TIME, "a time such as 500, 30s or 5m"},
	[KEY_COUNT] = {counts, 0, MAX_COUNT, "a whole number"},
	[KEY_COUNT_1] = {counts, 1, MAX_COUNT, "a whole number from 1 up"},
	[KEY_SESSIONS] = {counts, 0, CONFIG_MAX_SESSIONS,
			  "a whole number below 4096"},
};

/* clang-format off */
#define KEY(section, name, kind) \
	{ section, #name, kind, offsetof(struct config, name) }

static const struct key {
	const char *section, *name;
	enum key_kind kind;
	size_t offset;
} keys[] = {
	KEY("memory", memory_max, KEY_SIZE),
	KEY("memory", memory_reserve, KEY_SIZE),
	KEY("memory", chunk_min, KEY_SIZE),
	KEY("memory", chunk_max, KEY_SIZE),
	KEY("memory", warm_ms, KEY_TIME),
	KEY("memory", device_memory_max, KEY_SIZE),
	KEY("memory", device_quarantine_ms, KEY_TIME),
	KEY("quota", quota_bytes, KEY_SIZE),
	KEY("quota", quota_device_bytes, KEY_SIZE),
	KEY("quota", quota_slots, KEY_COUNT_1),
	KEY("quota", quota_sessions, KEY_COUNT_1),
	KEY("quota", sessions_reserved, KEY_SESSIONS),
	KEY("quota", quota_waiting, KEY_COUNT),
	KEY("quota", quota_queue, KEY_SIZE),
	KEY("quota", quota_prefixes, KEY_COUNT),
	KEY("quota", prefix_grace_ms, KEY_TIME),
	KEY("quota", quota_chunks, KEY_COUNT_1),
	KEY("quota", quota_grants, KEY_COUNT_1),
	KEY("quota", quota_refs, KEY_SIZE),
	KEY("quota", quota_tickets, KEY_COUNT),
	KEY("quota", quota_bundles, KEY_COUNT),
	KEY("quota", quota_groups, KEY_COUNT),
	KEY("quota", quota_timelines, KEY_COUNT),
};
/* clang-format on */

#define N_KEYS (sizeof(keys) / sizeof(keys[0]))

static int set_number(struct config *config, const struct key *key,
		      const char *value, struct error *err)
{
	uint64_t number;

	if (!parse_number(value, key_kinds[key->kind].units,
			  key_kinds[key->kind].max, &number) ||
	    number < key_kinds[key->kind].min)
		return error_set(err, -EINVAL, "%s = \"%s\": not %s", key->name,
				 value, key_kinds[key->kind].what);
	memcpy((char *)config + key->offset, &number, sizeof(number));
	return 0;
}

static int refuse_twice(const char *name, struct error *err)
{
	return error_set(err, -EINVAL,
			 "%s is set for the second time; keep one of the lines",
			 name);
}

static int set_admin_group(struct config *config, const char *value,
			   struct error *err)
{
	int r;

	if (config->has_admin_gid)
		return refuse_twice("admin_group", err);
	r = find_group(value, &config->admin_gid, err);
	if (r < 0)
		return error_wrap(err, r, "admin_group");
	config->has_admin_gid = true;
	return 0;
}

static int check_prefix(const struct config *config, const char *name,
			struct error *err)
{
	size_t i;
	int r;

	r = name_check(name, err);
	if (r < 0)
		return r;
	if (strchr(name, '/'))
		return error_set(err, -EINVAL,
				 "prefix \"%s\": only the first component of a "
				 "name can have an owner",
				 name);
	for (i = 0; i < config->n_prefixes; i++) {
		if (strcmp(config->prefixes[i].name, name) == 0)
			return refuse_twice(name, err);
	}
	return 0;
}

static int add_prefix(struct config *config, const char *name,
		      const char *value, struct error *err)
{
	struct config_prefix *prefixes, *prefix;
	uint32_t uid = UINT32_MAX;
	int r;

	r = check_prefix(config, name, err);
	if (r < 0)
		return r;
	r = find_user(value, &uid, err);
	if (r < 0)
		return error_wrap(err, r, "prefix \"%s\"", name);
	prefixes = reallocarray(config->prefixes, config->n_prefixes + 1,
				sizeof(*prefixes));
	if (!prefixes)
		return error_set(err, -ENOMEM, "no memory for prefix \"%s\"",
				 name);
	config->prefixes = prefixes;
	prefix = &prefixes[config->n_prefixes++];
	snprintf(prefix->name, sizeof(prefix->name), "%s", name);
	prefix->uid = uid;
	return 0;
}

/* --- files --------------------------------------------------------------- */

struct reading {
	FILE *file;
	struct config *config;
	const char *path;
	unsigned int line;
	/* The line where each of `keys` was set; 0: not set. */
	unsigned int lines[N_KEYS];
	int r; /* of the first error */
	struct error *err;
};

static int set_key(struct reading *reading, const char *section,
		   const char *name, const char *value, struct error *err)
{
	size_t i;

	for (i = 0; i < N_KEYS; i++) {
		if (strcmp(section, keys[i].section) != 0 ||
		    strcmp(name, keys[i].name) != 0)
			continue;
		if (reading->lines[i])
			return refuse_twice(name, err);
		reading->lines[i] = reading->line;
		return set_number(reading->config, &keys[i], value, err);
	}
	return error_set(err, -EINVAL, "there is no key \"%s\" in [%s]", name,
			 section);
}

static int set(struct reading *reading, const char *section, const char *name,
	       const char *value, struct error *err)
{
	if (!*section)
		return error_set(err, -EINVAL,
				 "the key \"%s\" is in no section; write "
				 "[memory], [quota], [access] or [prefixes] "
				 "above it",
				 name);
	if (strcmp(section, "prefixes") == 0)
		return add_prefix(reading->config, name, value, err);
	if (strcmp(section, "access") == 0 && strcmp(name, "admin_group") == 0)
		return set_admin_group(reading->config, value, err);
	return set_key(reading, section, name, value, err);
}

static unsigned int line_of(const struct reading *reading, const char *name)
{
	size_t i = 0;

	while (strcmp(keys[i].name, name) != 0)
		i++;
	return reading->lines[i];
}

static void refuse(struct reading *reading, int r, const struct error *cause)
{
	if (reading->r < 0)
		return;
	reading->r = error_set(reading->err, r, "%s:%u: %s", reading->path,
			       reading->line, cause->msg);
}

static bool is_section(const char *name)
{
	static const char *const names[] = {"memory", "quota", "access",
					    "prefixes"};
	size_t i;

	for (i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		if (strcmp(name, names[i]) == 0)
			return true;
	}
	return false;
}

/* libinih does not report sections without keys, so they are checked here. */
static void check_section(struct reading *reading, const char *line)
{
	struct error cause = ERROR_NULL;
	char name[64];

	line += strspn(line, " \t");
	if (sscanf(line, "[%63[^]]]", name) != 1 || is_section(name))
		return;
	error_set(&cause, -EINVAL, "there is no section [%s]", name);
	refuse(reading, -EINVAL, &cause);
}

/* Read a line for libinih, which needs the end of each line. */
static char *read_line(char *line, int size, void *data)
{
	struct reading *reading = data;
	struct error cause = ERROR_NULL;
	size_t length;

	if (reading->r < 0 || !fgets(line, size, reading->file))
		return NULL;
	reading->line++;
	length = strlen(line);
	if (line[length - 1] != '\n' && length + 1 == (size_t)size) {
		error_set(&cause, -EINVAL, "a line of more than %d bytes",
			  size - 2);
		refuse(reading, -EINVAL, &cause);
		return NULL;
	}
	check_section(reading, line);
	return line;
}

static int on_value(void *data, const char *section, const char *name,
		    const char *value)
{
	struct reading *reading = data;
	struct error cause = ERROR_NULL;
	int r;

	r = set(reading, section, name, value, &cause);
	if (r < 0)
		refuse(reading, r, &cause);
	return r == 0;
}

static void check_memory(struct reading *reading)
{
	uint64_t max = reading->config->memory_max;
	struct error cause = ERROR_NULL;
	uint64_t total = UINT64_MAX;

	(void)machine_memory(&total, NULL);
	reading->line = line_of(reading, "memory_max");
	if (max >= MIN_CHUNK && max <= total)
		return;
	error_set(&cause, -EINVAL,
		  "memory_max (%" PRIu64 ") must be at least 2M, the smallest "
		  "chunk, and at most %" PRIu64 "M, the memory of this machine",
		  max, total / MIB);
	refuse(reading, -EINVAL, &cause);
}

static void check_chunks(struct reading *reading)
{
	const struct config *config = reading->config;
	unsigned int line = line_of(reading, "chunk_max");
	struct error cause = ERROR_NULL;

	if (config->chunk_min >= MIN_CHUNK &&
	    config->chunk_max >= config->chunk_min)
		return;
	reading->line = line_of(reading, "chunk_min");
	if (reading->line < line && config->chunk_min >= MIN_CHUNK)
		reading->line = line;
	error_set(&cause, -EINVAL,
		  "chunk_min (%" PRIu64
		  ") must be 2M or more and chunk_max (%" PRIu64
		  ") not below it",
		  config->chunk_min, config->chunk_max);
	refuse(reading, -EINVAL, &cause);
}

static int parse(struct reading *reading)
{
	struct error cause = ERROR_NULL;
	int line = ini_parse_stream(read_line, reading, on_value, reading);

	if (reading->r < 0)
		return reading->r;
	if (line == 0)
		return 0;
	if (line > 0)
		reading->line = (unsigned int)line;
	error_set(&cause, -EINVAL, "neither [section] nor key = value");
	refuse(reading, -EINVAL, &cause);
	return reading->r;
}

int config_read(struct config *config, const char *path, struct error *err)
{
	struct reading reading = {.config = config, .path = path, .err = err};
	int r;

	reading.file = fopen(path, "re");
	if (!reading.file)
		return error_set(err, -errno,
				 "cannot read the configuration %s: %s; name "
				 "one that fsdpd may read with --config",
				 path, strerrordesc_np(errno));
	r = parse(&reading);
	if (r == 0 && ferror(reading.file))
		r = error_errno(err, -EIO, "read %s", path);
	fclose(reading.file);
	if (r < 0)
		return r;
	if (!line_of(&reading, "quota_bytes"))
		config->quota_bytes = config->memory_max;
	check_memory(&reading);
	check_chunks(&reading);
	return reading.r;
}

/* --- defaults ------------------------------------------------------------ */

/* The first number in a file; false: no such file, or "max". */
static bool read_number(const char *path, uint64_t *ret)
{
	FILE *file = fopen(path, "re");
	bool is_read;

	if (!file)
		return false;
	is_read = fscanf(file, "%" SCNu64, ret) == 1;
	fclose(file);
	return is_read;
}

/* The smallest limit from `path` (of a cgroup, below `root`) up to `root`. */
static uint64_t cgroup_limit(const char *root, char *path, const char *file)
{
	uint64_t limit = UINT64_MAX;

	for (;;) {
		char name[512];
		char *slash = strrchr(path, '/');
		uint64_t number;

		snprintf(name, sizeof(name), "%s%s/%s", root, path, file);
		if (read_number(name, &number) && number < limit)
			limit = number;
		if (!slash)
			return limit;
		*slash = '\0';
	}
}

/* The memory limit of our cgroup, in both versions of cgroups. */
static uint64_t memory_limit(void)
{
	FILE *file = fopen("/proc/self/cgroup", "re");
	uint64_t limit = UINT64_MAX;
	char line[512];

	if (!file)
		return limit;
	while (fgets(line, sizeof(line), file)) {
		char *controllers = strchr(line, ':');
		char *path = controllers ? strchr(controllers + 1, ':') : NULL;
		uint64_t found = UINT64_MAX;

		if (!path)
			continue;
		*path++ = '\0';
		controllers++;
		path[strcspn(path, "\n")] = '\0';
		if (!*controllers)
			found = cgroup_limit("/sys/fs/cgroup", path,
					     "memory.max");
		else if (strcmp(controllers, "memory") == 0)
			found = cgroup_limit("/sys/fs/cgroup/memory", path,
					     "memory.limit_in_bytes");
		if (found < limit)
			limit = found;
	}
	fclose(file);
	return limit;
}

static int default_memory(uint64_t *ret, struct error *err)
{
	uint64_t total = 0, limit;
	int r;

	r = machine_memory(&total, err);
	if (r < 0)
		return r;
	limit = memory_limit();
	*ret = (limit < total ? limit : total) / 2;
	return 0;
}

int config_init(struct config *config, struct error *err)
{
	uint64_t memory_max = 0;
	int r;

	r = default_memory(&memory_max, err);
	if (r < 0)
		return r;
	*config = (struct config){
		.memory_max = memory_max,
		.memory_reserve = 256 * MIB,
		.chunk_min = 64 * MIB,
		.chunk_max = 16 * GIB,
		.warm_ms = 30000,
		.quota_bytes = memory_max,
		.quota_device_bytes = MAX_SIZE,
		.quota_slots = 262144,
		.quota_sessions = 1024,
		.sessions_reserved = 16,
		.quota_waiting = 1024,
		.quota_queue = 64 * MIB,
		.quota_prefixes = 256,
		.prefix_grace_ms = 300000,
		.quota_chunks = 256,
		.quota_grants = 2097152,
		.quota_refs = GIB,
		.quota_tickets = 65536,
		.quota_bundles = 1024,
		.quota_groups = 4096,
		.quota_timelines = 128,
	};
	return 0;
}

void config_deinit(struct config *config)
{
	free(config->prefixes);
	*config = (struct config){0};
}
