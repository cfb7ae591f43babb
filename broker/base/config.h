/*
 * The configuration: defaults, a file, its drop-ins, and settings on the
 * command line. Each of these replaces values of those before it.
 *
 * Files are INI files. The drop-ins of PATH are PATH.d/<name>.conf, in the
 * order of their names. Sizes take K, M, G, T (powers of 1024); times are in
 * milliseconds or take s, m, h. Errors are refused with file and line: an
 * unknown section, key or value, a key that is set twice in one file, and a key
 * above the first section. config_keys.c has the table of all keys, and
 * docs/fsdpd.conf documents each.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct error;

#define CONFIG_DEFAULT_PATH "/etc/fsdpd/fsdpd.conf"
#define CONFIG_NO_GROUP     UINT64_MAX
/* The largest size. As quota_device_bytes it means that there is no limit. */
#define CONFIG_MAX_SIZE    (UINT64_C(1) << 50)
#define CONFIG_MAX_KEYS    32
#define CONFIG_VALUE_SIZE  32
#define CONFIG_ORIGIN_SIZE 512
/* The largest value of sessions_reserved. */
#define CONFIG_MAX_SESSIONS 4095

/* The place where a value was set. */
struct config_origin {
	/* borrowed from the configuration; NULL: it is the default */
	const char *path;
	unsigned int line;
	uint32_t order; /* later origins have greater numbers; 0: default */
};

struct config_prefix {
	char name[256];
	uint32_t uid;
	struct config_origin origin;
};

struct config {
	/* --- [memory] --- */

	/* The limit for the bytes of chunks. The default is half of the smaller
	 * of MemTotal and the cgroup's limit. */
	uint64_t memory_max;
	/* The bytes of MemAvailable that stay free. */
	uint64_t memory_reserve;
	/* The size of a pool's first chunk, and of its largest. */
	uint64_t chunk_min, chunk_max;
	/* The time for which free pages are kept. */
	uint64_t warm_ms;
	/* The limit for the bytes of chunks on each device; 0: 90 % of its
	 * memory. */
	uint64_t device_memory_max;
	/* The time from the death of a process with device memory to the end of
	 * its session. */
	uint64_t device_quarantine_ms;

	/* --- [quota]: for each uid; root has memory_max for bytes --- */

	uint64_t quota_bytes; /* default: memory_max */
	uint64_t quota_device_bytes;
	uint64_t quota_slots;
	uint64_t quota_sessions;
	/* The number of sessions, of 4,096, that are reserved for
	 * administrators. */
	uint64_t sessions_reserved;
	uint64_t quota_waiting; /* parked requests */
	uint64_t quota_queue;   /* bytes of queued and recorded replies */
	uint64_t quota_prefixes;
	/* The time for which a first component keeps its owner after its last
	 * name. */
	uint64_t prefix_grace_ms;
	uint64_t quota_chunks; /* chunks of this uid's pools */
	uint64_t quota_grants; /* tensors times sessions */
	uint64_t quota_refs;   /* bytes of ref-counter files */
	uint64_t quota_tickets;
	uint64_t quota_bundles; /* versions of bundles */
	uint64_t quota_groups;  /* groups of communicators, and channels */
	uint64_t quota_timelines;

	/* --- [access] --- */

	/* The members of this group may list all holders; CONFIG_NO_GROUP:
	 * there is no such group. */
	uint64_t admin_group;
	/* Whether the broker gives system calls up at its start (bool). */
	uint64_t sandbox;

	/* --- [prefixes]: name = user --- */

	size_t n_prefixes;
	struct config_prefix *prefixes;

	/* --- origins --- */

	struct config_origin origins[CONFIG_MAX_KEYS];
	uint32_t n_set;
	struct config_path *paths;
};

struct config_source {
	/* NULL: CONFIG_DEFAULT_PATH, which may be missing. */
	const char *path;
	/* Texts "KEY=VALUE", as --set takes them. */
	const char *const *settings;
	size_t n_settings;
};

/* Sets the defaults for this machine. */
int config_init(struct config *config, struct error *err);
/* Sets the defaults, and reads the files and settings that the source names. On
 * failure nothing is left to free. It may block, and any thread may call it. */
int config_load(struct config *config, const struct config_source *source,
		struct error *err);
void config_deinit(struct config *config);

/* One key, or one entry of [prefixes], as text. */
struct config_entry {
	const char *section, *name;
	char value[CONFIG_VALUE_SIZE];
	char origin[CONFIG_ORIGIN_SIZE]; /* "default", FILE:LINE, "--set" */
};

/* Reads entry `i`, in the order of the documents. Returns false if there are
 * fewer. Names are valid as long as the configuration. */
bool config_entry(const struct config *config, size_t i,
		  struct config_entry *ret);
