/*
 * The configuration: defaults, a file, its drop-ins, and settings of the
 * command line. Each of these replaces values of those before it.
 *
 * Files are INI files. The drop-ins of PATH are PATH.d/<name>.conf, in the
 * order of their names. Sizes take K, M, G, T (powers of 1024); times are in
 * milliseconds or take s, m, h. An unknown section, key or value, a key that is
 * set twice in one file and a key above the first section are refused with file
 * and line. config_keys.c has the table of all keys, and docs/fsdpd.conf
 * documents each.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct error;

#define CONFIG_DEFAULT_PATH "/etc/fsdpd/fsdpd.conf"
#define CONFIG_NO_GROUP     UINT64_MAX
#define CONFIG_MAX_KEYS     32
#define CONFIG_VALUE_SIZE   32
#define CONFIG_ORIGIN_SIZE  512
/* The records of sessions in the catalog. */
#define CONFIG_MAX_SESSIONS 4095

/* Where a value comes from. */
struct config_origin {
	const char *path; /* borrowed from the configuration; NULL: default */
	unsigned int line;
	uint32_t order; /* later ones have greater numbers; 0: default */
};

struct config_prefix {
	char name[256];
	uint32_t uid;
	struct config_origin origin;
};

struct config {
	/* --- [memory] --- */

	/* Bytes of chunks; default: half of the smaller of MemTotal and the
	 * cgroup's limit. */
	uint64_t memory_max;
	/* Bytes of MemAvailable that stay free. */
	uint64_t memory_reserve;
	/* Size of a pool's first chunk, and of its largest. */
	uint64_t chunk_min, chunk_max;
	/* How long free pages are kept. */
	uint64_t warm_ms;
	/* Bytes of chunks on each device; 0: 90 % of its memory. */
	uint64_t device_memory_max;
	/* Time from the death of a process with device memory to the end of its
	 * session. */
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
	uint64_t quota_chunks; /* of this uid's pools */
	uint64_t quota_grants; /* tensors times sessions */
	uint64_t quota_refs;   /* bytes of ref-counter files */
	uint64_t quota_tickets;
	uint64_t quota_bundles; /* versions */
	uint64_t quota_groups;  /* kept by communicators */
	uint64_t quota_timelines;

	/* --- [access] --- */

	/* Its members may list all holders; CONFIG_NO_GROUP. */
	uint64_t admin_group;
	/* Does the broker give system calls up at its start (bool)? */
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
	/* "KEY=VALUE", as --set has them. */
	const char *const *settings;
	size_t n_settings;
};

/* Set the defaults for this machine. */
int config_init(struct config *config, struct error *err);
/* Set the defaults, and read what the source names. On failure nothing is left
 * to free. It may block, and any thread may call it. */
int config_load(struct config *config, const struct config_source *source,
		struct error *err);
void config_deinit(struct config *config);

/* One key, or one entry of [prefixes], as texts. */
struct config_entry {
	const char *section, *name;
	char value[CONFIG_VALUE_SIZE];
	char origin[CONFIG_ORIGIN_SIZE]; /* "default", FILE:LINE, "--set" */
};

/* Read entry `i`, in the order of the documents; false means that there are
 * fewer. Names are valid as long as the configuration. */
bool config_entry(const struct config *config, size_t i,
		  struct config_entry *ret);
