/* This file reads the settings from the environment. */
#include "tests/fakes/cuda/settings.h"
#include "cuda/driver_api.h"
#include "tests/fakes/cuda/queue.h"
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PREFIX "FAKECUDA_"

enum kind {
	KIND_TEXT,
	KIND_NUMBER,
	KIND_SWITCH,
	KIND_MODE,
	KIND_FEATURES,
};

static const struct variable {
	const char *name; /* name after PREFIX */
	enum kind kind;
	size_t offset; /* offset of the member in struct settings */
	uint64_t min, max;
} variables[] = {
	{"DIR", KIND_TEXT, offsetof(struct settings, dir), 0, 0},
	{"HOME", KIND_TEXT, offsetof(struct settings, home), 0, 0},
	{"FAIL", KIND_TEXT, offsetof(struct settings, fail), 0, 0},
	{"DEVICES", KIND_NUMBER, offsetof(struct settings, n_devices), 0,
	 FAKE_MAX_DEVICES},
	{"MEM_MB", KIND_NUMBER, offsetof(struct settings, memory_mb), 0,
	 1 << 24},
	{"CONTEXT_MB", KIND_NUMBER, offsetof(struct settings, context_mb), 0,
	 1 << 24},
	{"COMPUTE_MODE", KIND_MODE, offsetof(struct settings, compute_mode), 0,
	 0},
	{"DRIVER_VERSION", KIND_NUMBER,
	 offsetof(struct settings, driver_version), 1000, 99999},
	{"WITHOUT", KIND_FEATURES, offsetof(struct settings, has), 0, false},
	{"WITH", KIND_FEATURES, offsetof(struct settings, has), 0, true},
	{"DELAY_US", KIND_NUMBER, offsetof(struct settings, delay_us), 0,
	 10000000},
	{"COPY_US", KIND_NUMBER, offsetof(struct settings, copy_us), 0,
	 10000000},
	{"SEED", KIND_NUMBER, offsetof(struct settings, seed), 0, UINT64_MAX},
	{"QUEUES", KIND_NUMBER, offsetof(struct settings, n_queues), 0,
	 QUEUES_MAX},
	{"ONE_CALLBACK", KIND_SWITCH,
	 offsetof(struct settings, has_one_callback), 0, 1},
	{"MIG", KIND_SWITCH, offsetof(struct settings, is_mig), 0, 1},
	{"SYNC", KIND_SWITCH, offsetof(struct settings, does_sync), 0, 1},
	{"COUNT", KIND_SWITCH, offsetof(struct settings, does_count), 0, 1},
	{"LEAKS", KIND_SWITCH, offsetof(struct settings, does_report_leaks), 0,
	 1},
};

static const char *const feature_names[N_FEATURES] = {
	[FEATURE_VMM] = "vmm",
	[FEATURE_POSIX_FD] = "posix_fd",
	[FEATURE_RDMA] = "rdma",
	[FEATURE_MEMOPS] = "memops",
	[FEATURE_IPC_EVENTS] = "ipc_events",
	[FEATURE_READONLY_REGISTER] = "readonly_register",
};

static const struct {
	const char *name;
	CUcomputemode mode;
} modes[] = {
	{"default", CU_COMPUTEMODE_DEFAULT},
	{"exclusive_process", CU_COMPUTEMODE_EXCLUSIVE_PROCESS},
	{"prohibited", CU_COMPUTEMODE_PROHIBITED},
};

static struct settings current = {
	.n_devices = 2,
	.memory_mb = 4096,
	.driver_version = 13000,
	.delay_us = 200,
	.seed = 1,
	.has =
		{
			[FEATURE_VMM] = true,
			[FEATURE_POSIX_FD] = true,
			[FEATURE_RDMA] = true,
			[FEATURE_MEMOPS] = true,
			[FEATURE_IPC_EVENTS] = true,
		},
};

void settings_refuse(const char *format, ...)
{
	va_list list;

	fputs("fakecuda: ", stderr);
	va_start(list, format);
	vfprintf(stderr, format, list);
	va_end(list);
	fputc('\n', stderr);
	abort();
}

static uint64_t parse_number(const struct variable *variable, const char *text)
{
	unsigned long long value;
	char *end;

	errno = 0;
	value = strtoull(text, &end, 10);
	if (errno || end == text || *end || value < variable->min ||
	    value > variable->max)
		settings_refuse(PREFIX "%s=%s: a number from %llu to %llu is "
				       "wanted",
				variable->name, text,
				(unsigned long long)variable->min,
				(unsigned long long)variable->max);
	return value;
}

static uint64_t parse_mode(const char *text)
{
	for (size_t i = 0; i < sizeof(modes) / sizeof(*modes); i++) {
		if (strcmp(modes[i].name, text) == 0)
			return modes[i].mode;
	}
	settings_refuse(PREFIX "COMPUTE_MODE=%s: no such mode", text);
}

static void parse_features(const struct variable *variable, const char *text,
			   bool *has)
{
	size_t length;
	int i;

	for (; *text; text += length + (text[length] == ',')) {
		length = strcspn(text, ",");
		for (i = 0; i < N_FEATURES; i++) {
			if (strlen(feature_names[i]) == length &&
			    memcmp(feature_names[i], text, length) == 0)
				break;
		}
		if (i == N_FEATURES)
			settings_refuse(PREFIX "%s=...%s: no such feature",
					variable->name, text);
		has[i] = variable->max;
	}
}

static void set(const struct variable *variable, const char *text)
{
	void *member = (char *)&current + variable->offset;

	switch (variable->kind) {
	case KIND_TEXT:
		/* This is a copy that is never freed, because the environment
		 * may change. */
		*(const char **)member = *text ? strdup(text) : NULL;
		break;
	case KIND_NUMBER:
		*(uint64_t *)member = parse_number(variable, text);
		break;
	case KIND_SWITCH:
		*(bool *)member = parse_number(variable, text);
		break;
	case KIND_MODE:
		*(uint64_t *)member = parse_mode(text);
		break;
	case KIND_FEATURES:
		parse_features(variable, text, member);
		break;
	}
}

static const struct variable *find(const char *name, size_t length)
{
	for (size_t i = 0; i < sizeof(variables) / sizeof(*variables); i++) {
		if (strlen(variables[i].name) == length &&
		    memcmp(variables[i].name, name, length) == 0)
			return &variables[i];
	}
	settings_refuse(PREFIX "%.*s is no setting", (int)length, name);
}

/* "NAME=value" */
static void set_entry(const char *entry)
{
	size_t length = strcspn(entry, "=");

	set(find(entry, length), entry + length + (entry[length] == '='));
}

/* "NAME=value;NAME=value" */
static void load_plain(const char *list)
{
	char copy[1024];
	char *entry, *state;

	(void)snprintf(copy, sizeof(copy), "%s", list);
	for (entry = strtok_r(copy, ";", &state); entry;
	     entry = strtok_r(NULL, ";", &state))
		set_entry(entry);
}

static void load(void)
{
	const char *plain = getenv(PREFIX "PLAIN");

	if (plain) {
		load_plain(plain);
		return;
	}
	for (char **entry = environ; *entry; entry++) {
		if (strncmp(*entry, PREFIX, strlen(PREFIX)) == 0)
			set_entry(*entry + strlen(PREFIX));
	}
}

const struct settings *settings(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, load);
	return &current;
}
