/*
 * Configuration: units, limits, names, and the line of a mistake.
 */
#include "broker/base/config.h"
#include "proto/error.h"
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct config make(void)
{
	struct config config;

	cr_assert(zero(int, config_init(&config, NULL)));
	return config;
}

static int read_text(struct config *config, const char *text, struct error *err)
{
	char path[] = "/tmp/test-config-XXXXXX";
	int fd = mkstemp(path);
	int r;

	cr_assert(ge(int, fd, 0));
	cr_assert(eq(long, write(fd, text, strlen(text)), (long)strlen(text)));
	close(fd);
	r = config_read(config, path, err);
	unlink(path);
	return r;
}

Test(config, defaults_are_sensible_for_this_machine)
{
	struct config config = make();
	uint64_t total = (uint64_t)sysconf(_SC_PHYS_PAGES) *
			 (uint64_t)sysconf(_SC_PAGESIZE);

	cr_expect(gt(u64, config.memory_max, 0));
	cr_expect(le(u64, config.memory_max, total / 2));
	cr_expect(eq(u64, config.quota_bytes, config.memory_max));
	cr_expect(eq(u64, config.chunk_min, UINT64_C(64) << 20));
	cr_expect(eq(u64, config.warm_ms, 30000));
	cr_expect(zero(u64, config.device_memory_max));
	cr_expect(zero(u64, config.device_quarantine_ms));
	cr_expect(gt(u64, config.quota_device_bytes, UINT64_C(1) << 40));
	cr_expect(eq(u64, config.quota_timelines, 128));
	cr_expect(not(config.has_admin_gid));
	config_deinit(&config);
}

Test(config, values_take_units)
{
	struct config config = make();

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
	struct config config = make();

	cr_assert(zero(int, read_text(&config,
				      "[quota]\nquota_bytes = 1G\n"
				      "[memory]\nmemory_max = 128M\n",
				      NULL)));
	cr_expect(eq(u64, config.quota_bytes, 1 << 30));
	config_deinit(&config);
}

Test(config, users_and_groups_go_by_name_or_number)
{
	struct config config = make();

	cr_assert(zero(int, read_text(&config,
				      "[access]\nadmin_group = root\n"
				      "[prefixes]\nmodels = root\n"
				      "data = 4000000000\n",
				      NULL)));
	cr_expect(config.has_admin_gid);
	cr_expect(zero(u32, config.admin_gid));
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
	const char *where, *what; /* in the sentence */
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
	{"[prefixes]\na/b = root\n", ":2:", "first component"},
	{"[prefixes]\n.. = root\n", ":2:", ""},
	{"[memory]\nchunk_min = 1M\nchunk_max = 1G\n", ":2:", "chunk_min"},
	{"[memory]\nchunk_min = 4M\nchunk_max = 2M\n", ":3:", "chunk_max"},
	{"[memory]\nchunk_max = 2M\nchunk_min = 4M\n", ":3:", "chunk_max"},
	{"[memory]\nmemory_max = 0\n", ":2:", "memory_max"},
	{"[memory]\nmemory_max = 1000T\n#\n", ":2:", "of this machine"},
	{"[quota]\nquota_sessions = 0\n", ":2:", "from 1 up"},
	{"[quota]\nsessions_reserved = 4096\n", ":2:", "below 4096"},
	{"[memory]\nwarm_ms = 1\n\nwarm_ms = 1\n", ":4:", "second time"},
	{"[quota]\nquota_slots = 1\n[memory]\n[quota]\nquota_slots = 2\n",
	 ":5:", "quota_slots is set for the second time"},
	{"[access]\nadmin_group = root\nadmin_group = root\n",
	 ":3:", "second time"},
	{"[prefixes]\na = root\nb = root\na = 7\n", ":4:", "second time"},
};

Test(config, a_mistake_is_refused_with_its_line)
{
	size_t i;

	for (i = 0; i < sizeof(mistakes) / sizeof(mistakes[0]); i++) {
		struct config config = make();
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

Test(config, the_first_of_two_mistakes_is_told)
{
	struct config config = make();
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
	struct config config = make();
	struct error err = ERROR_NULL;
	char text[600];

	memset(text, 'x', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	text[0] = '#';
	cr_expect(eq(int, read_text(&config, text, &err), -EINVAL));
	cr_expect(strstr(err.msg, ":1: a line of more than") != NULL, "%s",
		  err.msg);
	config_deinit(&config);
}

Test(config, a_file_that_is_not_there_is_the_callers_to_judge)
{
	struct config config = make();
	struct error err = ERROR_NULL;

	cr_expect(eq(int, config_read(&config, "/nonexistent/x.conf", &err),
		     -ENOENT));
	cr_expect(strstr(err.msg, "/nonexistent/x.conf: No such file") != NULL,
		  "%s", err.msg);
	config_deinit(&config);
}

Test(config, the_documented_example_can_be_read_with_every_key_set)
{
	struct config config = make();
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
	cr_expect(config.has_admin_gid);
	cr_expect(gt(sz, config.n_prefixes, 0));
	config_deinit(&config);
}
