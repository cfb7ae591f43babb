/*
 * Tests units, limits and names of the configuration, and the line number of a
 * mistake.
 */
#include "broker/base/config.h"
#include "broker/base/config_keys.h"
#include "proto/error.h"
#include "tests/lib/check.h"
#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The file of a test, with the directory of its drop-ins. */
struct files {
	char folder[32], path[48], drop_ins[48];
};

static void write_file(const char *folder, const char *name, const char *text)
{
	char path[128];
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	file = fopen(path, "we");
	cr_assert(file != NULL);
	cr_assert(ge(int, fputs(text, file), 0));
	cr_assert(zero(int, fclose(file)));
}

static struct files make_files(const char *text)
{
	struct files files = {.folder = "/tmp/test-config-XXXXXX"};

	cr_assert(mkdtemp(files.folder) != NULL);
	snprintf(files.path, sizeof(files.path), "%s/x.conf", files.folder);
	snprintf(files.drop_ins, sizeof(files.drop_ins), "%s.d", files.path);
	cr_assert(zero(int, mkdir(files.drop_ins, 0700)));
	write_file(files.folder, "x.conf", text);
	return files;
}

static int unlink_one(const char *path, const struct stat *st, int type,
		      struct FTW *at)
{
	(void)st, (void)type, (void)at;
	return remove(path);
}

static void remove_files(const struct files *files)
{
	nftw(files->folder, unlink_one, 8, FTW_DEPTH | FTW_PHYS);
}

static int load(struct config *config, const struct files *files,
		const char *setting, struct error *err)
{
	struct config_source source = {
		.path = files->path,
		.settings = &setting,
		.n_settings = setting ? 1 : 0,
	};

	return config_load(config, &source, err);
}

static int read_text(struct config *config, const char *text, struct error *err)
{
	struct files files = make_files(text);
	int r = load(config, &files, NULL, err);

	remove_files(&files);
	return r;
}

Test(config, defaults_are_sensible_for_this_machine)
{
	struct config config;
	uint64_t total = (uint64_t)sysconf(_SC_PHYS_PAGES) *
			 (uint64_t)sysconf(_SC_PAGESIZE);

	cr_assert(zero(int, config_init(&config, NULL)));
	cr_expect(gt(u64, config.memory_max, 0));
	cr_expect(le(u64, config.memory_max, total / 2));
	cr_expect(eq(u64, config.quota_bytes, config.memory_max));
	cr_expect(eq(u64, config.chunk_min, UINT64_C(64) << 20));
	cr_expect(eq(u64, config.warm_ms, 30000));
	cr_expect(zero(u64, config.device_memory_max));
	cr_expect(zero(u64, config.device_quarantine_ms));
	cr_expect(gt(u64, config.quota_device_bytes, UINT64_C(1) << 40));
	cr_expect(eq(u64, config.quota_timelines, 128));
	cr_expect(eq(u64, config.admin_group, CONFIG_NO_GROUP));
	config_deinit(&config);
}

Test(config, values_take_units)
{
	struct config config = {0};

	cr_assert(zero(int, read_text(&config,
				      "# a comment\n"
				      "[memory]\n"
				      "memory_max = 128M\n"
				      "memory_reserve = 0\n"
				      "chunk_min = 2048K\n"
				      "chunk_max = 1073741824\n"
				      "warm_ms = 5m\n"
				      "device_memory_max = 60G\n"
				      "device_quarantine_ms = 2s\n"
				      "\n"
				      "[quota]\n"
				      "quota_device_bytes = 40G\n"
				      "quota_timelines = 7\n"
				      "quota_slots = 12\n"
				      "quota_queue = 1M ; behind it\n",
				      NULL)));
	cr_expect(eq(u64, config.memory_max, 128 << 20));
	cr_expect(zero(u64, config.memory_reserve));
	cr_expect(eq(u64, config.chunk_min, 2 << 20));
	cr_expect(eq(u64, config.chunk_max, 1 << 30));
	cr_expect(eq(u64, config.warm_ms, 300000));
	cr_expect(eq(u64, config.device_memory_max, UINT64_C(60) << 30));
	cr_expect(eq(u64, config.device_quarantine_ms, 2000));
	cr_expect(eq(u64, config.quota_device_bytes, UINT64_C(40) << 30));
	cr_expect(eq(u64, config.quota_timelines, 7));
	cr_expect(eq(u64, config.quota_slots, 12));
	cr_expect(eq(u64, config.quota_queue, 1 << 20));
	cr_expect(eq(u64, config.quota_bytes, config.memory_max));
	config_deinit(&config);
}

Test(config, a_quota_of_bytes_that_is_set_does_not_follow_memory_max)
{
	struct config config = {0};

	cr_assert(zero(int, read_text(&config,
				      "[quota]\nquota_bytes = 1G\n"
				      "[memory]\nmemory_max = 128M\n",
				      NULL)));
	cr_expect(eq(u64, config.quota_bytes, 1 << 30));
	config_deinit(&config);
}

Test(config, users_and_groups_are_given_by_name_or_number)
{
	struct config config = {0};

	cr_assert(zero(int, read_text(&config,
				      "[access]\nadmin_group = root\n"
				      "[prefixes]\nmodels = root\n"
				      "data = 4000000000\n",
				      NULL)));
	cr_expect(zero(u64, config.admin_group));
	cr_assert(eq(sz, config.n_prefixes, 2));
	cr_expect(eq(str, config.prefixes[0].name, "models"));
	cr_expect(zero(u32, config.prefixes[0].uid));
	cr_expect(eq(str, config.prefixes[1].name, "data"));
	cr_expect(eq(u32, config.prefixes[1].uid, 4000000000u));
	config_deinit(&config);
	cr_expect(zero(sz, config.n_prefixes));
}

static const struct {
	const char *text;
	const char *where, *what; /* must appear in the error's sentence */
} mistakes[] = {
	{"[memory]\nmemory_max = 12X\n", ":2:", "12X"},
	{"[memory]\n\nmemory_max = -1\n", ":3:", "-1"},
	{"[memory]\nmemory_max = 99999999999999999999\n", ":2:", "not a size"},
	{"[memory]\nmemory_max = 20000000T\n", ":2:", "not a size"},
	{"[memory]\nmemory_max =\n", ":2:", "not a size"},
	{"[memory]\nwarm_ms = 3G\n", ":2:", "not a time"},
	{"[quota]\nquota_slots = 1K\n", ":2:", "whole number"},
	{"[memory]\nquota_slots = 1\n", ":2:", "no key \"quota_slots\""},
	{"[memroy]\n", ":1:", "no section [memroy]"},
	{"memory_max = 1G\n", ":1:", "\"memory_max\" is in no section"},
	{"[memory]\nmemory_max 1G\n", ":2:", "key = value"},
	{"[access]\nadmin_group = nobody-has-this\n", ":2:", "no group"},
	{"[prefixes]\nx = nobody-has-this\n", ":2:", "no user"},
	{"[access]\nsandbox = 1\n", ":2:", "neither yes nor no"},
	{"[prefixes]\na/b = root\n", ":2:", "first component"},
	{"[prefixes]\n.. = root\n", ":2:", ""},
	{"[memory]\nchunk_min = 1M\nchunk_max = 1G\n", ":2:", "chunk_min"},
	{"[memory]\nchunk_min = 4M\nchunk_max = 2M\n", ":3:", "chunk_max"},
	{"[memory]\nchunk_max = 2M\nchunk_min = 4M\n", ":3:", "chunk_max"},
	{"[memory]\nmemory_max = 0\n", ":2:", "memory_max"},
	{"[memory]\nmemory_max = 1000T\n#\n", ":2:", "of this machine"},
	{"[quota]\nquota_sessions = 0\n", ":2:", "of at least 1"},
	{"[quota]\nsessions_reserved = 4096\n", ":2:", "below 4096"},
	{"[memory]\nwarm_ms = 1\n\nwarm_ms = 1\n", ":4:", "is set twice"},
	{"[quota]\nquota_slots = 1\n[memory]\n[quota]\nquota_slots = 2\n",
	 ":5:", "quota_slots is set twice"},
	{"[access]\nadmin_group = root\nadmin_group = root\n",
	 ":3:", "is set twice"},
	{"[prefixes]\na = root\nb = root\na = 7\n", ":4:", "is set twice"},
};

Test(config, a_mistake_is_refused_with_its_line)
{
	size_t i;

	for (i = 0; i < sizeof(mistakes) / sizeof(mistakes[0]); i++) {
		struct config config = {0};
		struct error err = ERROR_NULL;

		cr_expect(eq(int, read_text(&config, mistakes[i].text, &err),
			     -EINVAL),
			  "%s", mistakes[i].text);
		cr_expect(strstr(err.msg, mistakes[i].where) != NULL, "%s",
			  err.msg);
		cr_expect(strstr(err.msg, mistakes[i].what) != NULL, "%s",
			  err.msg);
		config_deinit(&config);
	}
}

Test(config, the_first_of_two_mistakes_is_reported)
{
	struct config config = {0};
	struct error err = ERROR_NULL;

	cr_expect(eq(
		int,
		read_text(&config, "[quota]\nquota_slots = a\nb = 1\n", &err),
		-EINVAL));
	cr_expect(strstr(err.msg, ":2:") != NULL, "%s", err.msg);
	config_deinit(&config);
}

Test(config, a_line_that_is_too_long_is_refused)
{
	struct config config = {0};
	struct error err = ERROR_NULL;
	char text[600];

	memset(text, 'x', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	text[0] = '#';
	cr_expect(eq(int, read_text(&config, text, &err), -EINVAL));
	cr_expect(strstr(err.msg, ":1: the line has more than") != NULL, "%s",
		  err.msg);
	config_deinit(&config);
}

/* Expect that a file with this text is refused for its second line. */
static void expect_byte_of_0(const char *text, size_t size)
{
	struct files files = make_files("");
	struct error err = ERROR_NULL;
	struct config config;
	FILE *file;

	file = fopen(files.path, "we");
	cr_assert(file != NULL);
	cr_assert(eq(sz, fwrite(text, 1, size, file), size));
	cr_assert(zero(int, fclose(file)));
	cr_expect(eq(int, load(&config, &files, NULL, &err), -EINVAL));
	cr_expect(strstr(err.msg, ":2: the line has a byte of 0") != NULL, "%s",
		  err.msg);
	remove_files(&files);
}

Test(config, a_line_with_a_byte_of_0_is_refused)
{
	static const char first[] = "[memory]\n\0warm_ms = 1s\n";
	static const char middle[] = "[memory]\nwarm_ms = 1s\0 or 2s\n";

	expect_byte_of_0(first, sizeof(first) - 1);
	expect_byte_of_0(middle, sizeof(middle) - 1);
	/* The last line may have no end. */
	expect_byte_of_0(first, sizeof(first) - 2);
	expect_byte_of_0(middle, sizeof(middle) - 2);
}

/* Read a configuration with a prefix, in which the line of the prefix has
 * `size` bytes. */
static int read_line_of(int size, struct config *config, struct error *err)
{
	char text[300];

	snprintf(text, sizeof(text), "[prefixes]\n%0*d=7\n", size - 2, 0);
	return read_text(config, text, err);
}

Test(config, a_line_of_198_bytes_is_read_and_a_longer_one_is_refused)
{
	struct config config = {0};
	struct config_entry entry;
	struct error err = ERROR_NULL;

	for (int size = 197; size <= 198; size++) {
		cr_assert(zero(int, read_line_of(size, &config, &err)), "%s",
			  err.msg);
		cr_assert(config_entry(&config, config_n_keys, &entry));
		cr_expect(eq(int, (int)strlen(entry.name), size - 2));
		cr_expect(eq(str, entry.value, "7"));
		config_deinit(&config);
	}
	cr_expect(eq(int, read_line_of(199, &config, &err), -EINVAL));
	cr_expect(strstr(err.msg, ":2: the line has more than 198 bytes") !=
			  NULL,
		  "%s", err.msg);
}

/* So what is printed as key=value can be read again. */
Test(config, a_prefix_from_a_line_of_198_bytes_is_printed_in_198_bytes)
{
	struct config config = {0};
	struct config_entry entry;
	char text[300];

	snprintf(text, sizeof(text), "[prefixes]\n%0*d=4294967293\n", 187, 0);
	cr_assert(zero(int, read_text(&config, text, NULL)));
	cr_assert(config_entry(&config, config_n_keys, &entry));
	cr_expect(eq(sz, strlen(entry.name) + 1 + strlen(entry.value), 198));
	config_deinit(&config);
}

Test(config, a_file_given_by_the_user_must_exist)
{
	struct config_source source = {.path = "/nonexistent/x.conf"};
	struct error err = ERROR_NULL;
	struct config config;

	cr_expect(eq(int, config_load(&config, &source, &err), -ENOENT));
	cr_expect(strstr(err.msg, "/nonexistent/x.conf: No such file") != NULL,
		  "%s", err.msg);
	cr_expect(strstr(err.msg, "; let fsdpd read it, or") != NULL, "%s",
		  err.msg);
}

static void expect_entry(const struct config *config, const char *name,
			 const char *value, const char *origin)
{
	struct config_entry entry;
	size_t i = 0;

	while (config_entry(config, i, &entry) && strcmp(entry.name, name) != 0)
		i++;
	cr_assert(eq(str, (char *)entry.name, (char *)name));
	cr_expect(eq(str, entry.value, (char *)value));
	cr_expect(eq(str, entry.origin, (char *)origin));
}

Test(config, drop_ins_override_the_file_and_later_drop_ins_override_earlier)
{
	struct files files = make_files("[memory]\nwarm_ms = 1s\n"
					"chunk_max = 32G\n[quota]\n"
					"quota_slots = 7\n"
					"[prefixes]\nx = 1\n");
	struct config config = {0};
	char origin[128];

	write_file(files.drop_ins, "10.conf",
		   "[memory]\nwarm_ms = 2s\nchunk_max = 64G\n"
		   "[prefixes]\nx = 2\n");
	write_file(files.drop_ins, "20.conf", "\n[memory]\nwarm_ms = 180s\n");
	write_file(files.drop_ins, "30.conf~", "[memory]\nwarm_ms = 4s\n");
	write_file(files.drop_ins, ".conf", "[memory]\nwarm_ms = 5s\n");
	cr_assert(zero(int, load(&config, &files, NULL, NULL)));
	snprintf(origin, sizeof(origin), "%s/20.conf:3", files.drop_ins);
	expect_entry(&config, "warm_ms", "3m", origin);
	snprintf(origin, sizeof(origin), "%s/10.conf:3", files.drop_ins);
	expect_entry(&config, "chunk_max", "64G", origin);
	snprintf(origin, sizeof(origin), "%s:5", files.path);
	expect_entry(&config, "quota_slots", "7", origin);
	snprintf(origin, sizeof(origin), "%s/10.conf:5", files.drop_ins);
	expect_entry(&config, "x", "2", origin);
	expect_entry(&config, "quota_chunks", "256", "default");
	cr_expect(eq(sz, config.n_prefixes, 1));
	config_deinit(&config);
	remove_files(&files);
}

Test(config, hidden_files_are_no_drop_ins)
{
	struct files files = make_files("[memory]\nwarm_ms = 1s\n");
	struct config config = {0};
	char origin[128], lock[128];

	write_file(files.drop_ins, ".site.conf", "[memory]\nwarm_ms = 2s\n");
	/* While Emacs changes site.conf, it keeps this link beside it. */
	snprintf(lock, sizeof(lock), "%s/.#site.conf", files.drop_ins);
	cr_assert(zero(int, symlink("user@host.123:456", lock)));
	cr_assert(zero(int, load(&config, &files, NULL, NULL)));
	snprintf(origin, sizeof(origin), "%s:2", files.path);
	expect_entry(&config, "warm_ms", "1s", origin);
	config_deinit(&config);
	remove_files(&files);
}

Test(config, a_setting_of_the_command_line_overrides_all_files)
{
	struct files files = make_files("[memory]\nwarm_ms = 1s\n");
	struct config config = {0};
	struct error err = ERROR_NULL;

	write_file(files.drop_ins, "10.conf", "[memory]\nwarm_ms = 2s\n");
	cr_assert(zero(int, load(&config, &files, "warm_ms=250", NULL)));
	expect_entry(&config, "warm_ms", "250ms", "--set");
	config_deinit(&config);
	cr_expect(eq(int, load(&config, &files, "warm_ms=1x", &err), -EINVAL));
	cr_expect(strstr(err.msg, "--set warm_ms=1x: ") != NULL, "%s", err.msg);
	cr_expect(eq(int, load(&config, &files, "warm=1", &err), -EINVAL));
	cr_expect(strstr(err.msg, "no key \"warm\"") != NULL, "%s", err.msg);
	cr_expect(eq(int, load(&config, &files, "warm_ms", &err), -EINVAL));
	cr_expect(strstr(err.msg, "expected KEY=VALUE") != NULL, "%s", err.msg);
	cr_expect(
		eq(int, load(&config, &files, "chunk_max=2M", &err), -EINVAL));
	cr_expect(strstr(err.msg, "--set: chunk_min") != NULL, "%s", err.msg);
	remove_files(&files);
}

Test(config, a_mistake_in_a_drop_in_is_reported_with_its_file)
{
	struct files files = make_files("");
	struct config config = {0};
	struct error err = ERROR_NULL;

	write_file(files.drop_ins, "10.conf", "[memory]\nwarm = 2s\n");
	cr_expect(eq(int, load(&config, &files, NULL, &err), -EINVAL));
	cr_expect(strstr(err.msg, ".d/10.conf:2: ") != NULL, "%s", err.msg);
	remove_files(&files);
}

Test(config, a_value_that_is_printed_can_be_read)
{
	struct config config = {0}, again = {0};
	char value[CONFIG_VALUE_SIZE];

	cr_assert(zero(int, config_init(&config, NULL)));
	for (size_t i = 0; i < config_n_keys; i++) {
		config_key_print(&config, &config_keys[i], value);
		cr_expect(zero(int, config_key_set(&again, &config_keys[i],
						   value, NULL)));
		cr_expect(eq(u64, config_key_get(&again, &config_keys[i]),
			     config_key_get(&config, &config_keys[i])),
			  "%s = %s", config_keys[i].name, value);
	}
}

static void read_document(const char *name, char *ret, size_t size)
{
	char path[512];
	FILE *file;
	size_t n;

	snprintf(path, sizeof(path), FSDP_SOURCE_DIR "/docs/%s", name);
	file = fopen(path, "re");
	cr_assert(file != NULL, "%s", path);
	n = fread(ret, 1, size - 1, file);
	cr_assert(lt(sz, n, size - 1));
	ret[n] = '\0';
	fclose(file);
}

/* Returns whether the documents describe the default in words instead of giving
 * a value. */
static bool is_described(const struct config_key *key)
{
	return !key->default_value || !*key->default_value ||
	       strcmp(key->name, "device_memory_max") == 0 ||
	       strcmp(key->name, "quota_device_bytes") == 0;
}

Test(config, the_documents_have_every_key_and_its_default)
{
	static char example[65536], manual[65536];
	char text[128];

	read_document("fsdpd.conf", example, sizeof(example));
	read_document("man/fsdpd.conf.5", manual, sizeof(manual));
	for (size_t i = 0; i < config_n_keys; i++) {
		const struct config_key *key = &config_keys[i];
		bool is_word = is_described(key);

		snprintf(text, sizeof(text), "\n#%s = %s%s", key->name,
			 is_word ? "" : key->default_value,
			 is_word ? "" : "\n");
		cr_expect(strstr(example, text) != NULL, "fsdpd.conf: %s",
			  text);
		snprintf(text, sizeof(text), "%s \" (%s", key->name,
			 is_word ? "" : key->default_value);
		cr_expect(strstr(manual, text) != NULL, "fsdpd.conf(5): %s",
			  text);
	}
}

Test(config, the_documented_example_can_be_read_with_every_key_set)
{
	struct config config = {0};
	FILE *file = fopen(FSDP_SOURCE_DIR "/docs/fsdpd.conf", "re");
	char text[16384], line[256];
	size_t n = 0;

	cr_assert(file != NULL);
	/* Keys are commented out as "#key = value", prose as "# prose". */
	while (fgets(line, sizeof(line), file)) {
		const char *start = line;

		if (line[0] == '#' && line[1] != ' ' && line[1] != '\n')
			start++;
		n += (size_t)snprintf(text + n, sizeof(text) - n, "%s", start);
		cr_assert(lt(sz, n, sizeof(text)));
	}
	fclose(file);
	cr_expect(zero(int, read_text(&config, text, NULL)));
	cr_expect(ne(u64, config.admin_group, CONFIG_NO_GROUP));
	cr_expect(gt(sz, config.n_prefixes, 0));
	config_deinit(&config);
}
