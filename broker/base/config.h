/*
 * The configuration: an INI file, read once at start.
 *
 * Sizes take K, M, G, T (powers of 1024); times are in milliseconds or take s,
 * m, h. An unknown section, key or value, a key that is set twice and a key
 * above the first section are refused with file and line. docs/fsdpd.conf
 * documents every key.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct error;

struct config_prefix {
	char name[256];
	uint32_t uid;
};

/* The records of sessions in the catalog. */
#define CONFIG_MAX_SESSIONS 4095

struct config {
	/* [memory] */
	/* Bytes of chunks; default: half of the smaller of MemTotal and the
	 * cgroup's limit. */
	uint64_t memory_max;
	/* Bytes of MemAvailable that stay free; default: 256M. */
	uint64_t memory_reserve;
	uint64_t chunk_min; /* size of a pool's first chunk; 64M */
	uint64_t chunk_max; /* 16G */
	uint64_t warm_ms;   /* how long free pages are kept; 30 s */
	/* Bytes of chunks on each device; 0, the default: 90 % of
	 * its memory. */
	uint64_t device_memory_max;
	/* Time from the death of a process with device memory to the end of its
	 * session; default: 0. */
	uint64_t device_quarantine_ms;
	/* [quota]: per uid. Root has the same quotas, but memory_max
	 * for bytes. */
	uint64_t quota_bytes;        /* default: memory_max */
	uint64_t quota_device_bytes; /* on all devices; default: unlimited */
	uint64_t quota_slots;        /* 262,144 */
	uint64_t quota_sessions;     /* 1,024 */
	uint64_t sessions_reserved;  /* of 4,096, for administrators; 16 */
	uint64_t quota_waiting;      /* parked requests; 1,024 */
	uint64_t quota_queue;    /* bytes of queued and recorded replies; 64M */
	uint64_t quota_prefixes; /* first components owned; 256 */
	/* How long a first component keeps its owner after its last name ended;
	 * default: 5 min. */
	uint64_t prefix_grace_ms;
	uint64_t quota_chunks;    /* chunks of this uid's pools; 256 */
	uint64_t quota_grants;    /* tensors times sessions; 2,097,152 */
	uint64_t quota_refs;      /* bytes of ref-counter files; 1G */
	uint64_t quota_tickets;   /* 65,536 */
	uint64_t quota_bundles;   /* versions of bundles; 1,024 */
	uint64_t quota_groups;    /* kept groups of communicators; 4,096 */
	uint64_t quota_timelines; /* timeline files; 128 */
	/* [access] */
	bool has_admin_gid;
	uint32_t admin_gid; /* admin_group: may list all holders */
	/* [prefixes]: name = user */
	size_t n_prefixes;
	struct config_prefix *prefixes;
};

/* Set the defaults for this machine. */
int config_init(struct config *config, struct error *err);
/* Read `path` and override the present values. The caller decides
 * about -ENOENT. */
int config_read(struct config *config, const char *path, struct error *err);
void config_deinit(struct config *config);
