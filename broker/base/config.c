/*
 * The configuration as a whole: the files to read and their order, and the
 * rules that relate several values.
 */
#include "broker/base/config.h"
#include "broker/base/config_assign.h"
#include "broker/base/config_file.h"
#include "broker/base/config_keys.h"
#include "broker/base/machine.h"
#include "proto/error.h"
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB       (UINT64_C(1) << 20)
#define MIN_CHUNK (2 * MIB) /* one huge page */

/* The origin of settings on the command line. */
static const char from_command[] = "--set";

/* The name of a file, to which origins refer. */
struct config_path {
	struct config_path *next;
	char text[];
};

/* --- defaults ------------------------------------------------------------ */

static int default_memory(uint64_t *ret, struct error *err)
{
	uint64_t total = 0, limit;
	int r;

	r = machine_memory(&total, err);
	if (r < 0)
		return r;
	limit = machine_memory_limit();
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
		.quota_bytes = memory_max,
	};
	for (size_t i = 0; i < config_n_keys; i++) {
		const struct config_key *key = &config_keys[i];

		if (!key->default_value)
			continue;
		r = config_key_set(config, key, key->default_value, NULL);
		assert(r == 0);
	}
	return 0;
}

void config_deinit(struct config *config)
{
	while (config->paths) {
		struct config_path *path = config->paths;

		config->paths = path->next;
		free(path);
	}
	free(config->prefixes);
	*config = (struct config){0};
}

/* --- what must hold ------------------------------------------------------ */

static const struct config_origin *origin_of(const struct config *config,
					     const char *name)
{
	return &config->origins[config_key_find(NULL, name) - config_keys];
}

static void print_origin(const struct config_origin *origin,
			 char ret[CONFIG_ORIGIN_SIZE])
{
	if (!origin->path)
		strcpy(ret, "default");
	else if (origin->path == from_command)
		strcpy(ret, from_command);
	else
		snprintf(ret, CONFIG_ORIGIN_SIZE, "%.480s:%u", origin->path,
			 origin->line);
}

static int refuse(const struct config_origin *origin, const struct error *cause,
		  struct error *err)
{
	char text[CONFIG_ORIGIN_SIZE];

	print_origin(origin, text);
	return error_set(err, cause->code, "%s: %s", text, cause->msg);
}

static int check_memory(const struct config *config, struct error *err)
{
	uint64_t max = config->memory_max;
	struct error cause = ERROR_NULL;
	uint64_t total = UINT64_MAX;

	(void)machine_memory(&total, NULL);
	if (max >= MIN_CHUNK && max <= total)
		return 0;
	error_set(&cause, -EINVAL,
		  "memory_max (%" PRIu64 " bytes) must be at least 2M, the "
		  "smallest chunk, and at most %" PRIu64
		  "M, the memory of this machine",
		  max, total / MIB);
	return refuse(origin_of(config, "memory_max"), &cause, err);
}

static int check_chunks(const struct config *config, struct error *err)
{
	const struct config_origin *min = origin_of(config, "chunk_min");
	const struct config_origin *max = origin_of(config, "chunk_max");
	bool is_min_good = config->chunk_min >= MIN_CHUNK;
	struct error cause = ERROR_NULL;

	if (is_min_good && config->chunk_max >= config->chunk_min)
		return 0;
	error_set(&cause, -EINVAL,
		  "chunk_min (%" PRIu64
		  " bytes) must be at least 2M, and chunk_max (%" PRIu64
		  " bytes) at least chunk_min",
		  config->chunk_min, config->chunk_max);
	return refuse(is_min_good && max->order > min->order ? max : min,
		      &cause, err);
}

static int check(struct config *config, struct error *err)
{
	int r;

	if (!origin_of(config, "quota_bytes")->path)
		config->quota_bytes = config->memory_max;
	r = check_memory(config, err);
	return r < 0 ? r : check_chunks(config, err);
}

/* --- files --------------------------------------------------------------- */

/* Keeps a name as long as the configuration. NULL: memory ran out. */
static const char *keep_path(struct config *config, const char *folder,
			     const char *name)
{
	size_t size = strlen(folder) + strlen(name) + 2;
	struct config_path *path = malloc(sizeof(*path) + size);

	if (!path)
		return NULL;
	snprintf(path->text, size, "%s%s%s", folder, *folder ? "/" : "", name);
	path->next = config->paths;
	config->paths = path;
	return path->text;
}

static int read_file(struct config *config, const char *folder,
		     const char *name, struct error *err)
{
	const char *path = keep_path(config, folder, name);

	if (!path)
		return error_nomem(err, "the configuration");
	return config_file_read(config, path, err);
}

/* Hidden files are those of editors, such as the link ".#site.conf", which
 * leads to no file. */
static int is_drop_in(const struct dirent *entry)
{
	const char *end = strrchr(entry->d_name, '.');

	return end && *entry->d_name != '.' && strcmp(end, ".conf") == 0;
}

static int read_drop_ins(struct config *config, const char *path,
			 struct error *err)
{
	struct dirent **entries = NULL;
	char folder[4096];
	int n, r = 0;

	if (snprintf(folder, sizeof(folder), "%s.d", path) >=
	    (int)sizeof(folder))
		return error_set(err, -ENAMETOOLONG,
				 "the path %.64s... is too long", path);
	n = scandir(folder, &entries, is_drop_in, alphasort);
	if (n < 0 && errno != ENOENT)
		return error_errno(err, -errno, "cannot read the directory %s",
				   folder);
	for (int i = 0; i < n; i++) {
		if (r == 0)
			r = read_file(config, folder, entries[i]->d_name, err);
		free(entries[i]);
	}
	free(entries);
	return r;
}

static int read_settings(struct config *config,
			 const struct config_source *source, struct error *err)
{
	for (size_t i = 0; i < source->n_settings; i++) {
		const char *setting = source->settings[i];
		const char *equals = strchr(setting, '=');
		struct error cause = ERROR_NULL;
		char name[64];
		int r;

		if (!equals || equals - setting >= (long)sizeof(name))
			return error_set(err, -EINVAL,
					 "--set %s: expected KEY=VALUE",
					 setting);
		snprintf(name, sizeof(name), "%.*s", (int)(equals - setting),
			 setting);
		r = config_assign(config, NULL, name, equals + 1, from_command,
				  0, &cause);
		if (r < 0)
			return error_set(err, r, "--set %s: %s", setting,
					 cause.msg);
	}
	return 0;
}

static int read_all(struct config *config, const struct config_source *source,
		    struct error *err)
{
	const char *path = source->path ? source->path : CONFIG_DEFAULT_PATH;
	struct error cause = ERROR_NULL;
	int r;

	r = read_file(config, "", path, &cause);
	if (r == -ENOENT && !source->path)
		r = 0;
	if (r < 0)
		return error_set(err, r, "%s", cause.msg);
	r = read_drop_ins(config, path, err);
	if (r == 0)
		r = read_settings(config, source, err);
	return r < 0 ? r : check(config, err);
}

int config_load(struct config *config, const struct config_source *source,
		struct error *err)
{
	int r = config_init(config, err);

	if (r < 0)
		return r;
	r = read_all(config, source, err);
	if (r < 0)
		config_deinit(config);
	return r;
}

/* --- entries ------------------------------------------------------------- */

bool config_entry(const struct config *config, size_t i,
		  struct config_entry *ret)
{
	const struct config_prefix *prefix;

	if (i < config_n_keys) {
		ret->section = config_keys[i].section;
		ret->name = config_keys[i].name;
		config_key_print(config, &config_keys[i], ret->value);
		print_origin(&config->origins[i], ret->origin);
		return true;
	}
	i -= config_n_keys;
	if (i >= config->n_prefixes)
		return false;
	prefix = &config->prefixes[i];
	ret->section = "prefixes";
	ret->name = prefix->name;
	snprintf(ret->value, sizeof(ret->value), "%" PRIu32, prefix->uid);
	print_origin(&prefix->origin, ret->origin);
	return true;
}
