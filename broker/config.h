/*
 * What an administrator may set: an INI file, read once at start.
 *
 * Sizes take K, M, G, T (powers of 1024); times are in milliseconds or take
 * s, m, h. A section, key or value that is unknown, a key that is set twice and
 * one above every section are refused with file and line.
 * docs/fsdpd.conf documents every key.
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

struct config {
	/* [memory] */
	uint64_t memory_max; /* bytes of chunks; default: half of the smaller of
				MemTotal and the cgroup's limit */
	uint64_t memory_reserve;    /* bytes of MemAvailable left alone; 256M */
	uint64_t chunk_min;         /* size of a pool's first chunk; 64M */
	uint64_t chunk_max;         /* 16G */
	uint64_t warm_ms;           /* free pages are kept this long; 30 s */
	uint64_t device_memory_max; /* bytes of chunks on each device; 0, the
				       default: 90 % of what it has */
	uint64_t device_quarantine_ms; /* from the death of a process with such
					  memory to the end of its session; 0 */
	/* [quota], per uid; root has the same but memory_max for bytes */
	uint64_t quota_bytes;        /* default: memory_max */
	uint64_t quota_device_bytes; /* on all devices; default: no limit */
	uint64_t quota_slots;        /* 262,144 */
	uint64_t quota_sessions;     /* 1,024 */
	uint64_t sessions_reserved;  /* of 4,096, for administrators; 16 */
	uint64_t quota_waiting;      /* parked requests; 1,024 */
	uint64_t quota_queue; /* bytes of queued and remembered replies; 64M */
	uint64_t quota_prefixes;  /* first components owned; 256 */
	uint64_t prefix_grace_ms; /* from the last name to the end of that; 5 m
				   */
	uint64_t quota_chunks;    /* chunks of this uid's pools; 256 */
	uint64_t quota_grants;    /* tensors times sessions; 2,097,152 */
	uint64_t quota_refs;      /* bytes of ref-counter files; 1G */
	uint64_t quota_tickets;   /* 65,536 */
	uint64_t quota_bundles;   /* versions of bundles; 1,024 */
	uint64_t quota_groups;    /* of communicators, kept; 4,096 */
	uint64_t quota_timelines; /* files of them; 128 */
	/* [access] */
	bool has_admin_gid;
	uint32_t admin_gid; /* admin_group: may ask for every holder */
	/* [prefixes] name = user */
	size_t n_prefixes;
	struct config_prefix *prefixes;
};

/* Defaults for this machine. */
int config_init(struct config *config, struct error *err);
/* Read `path` over what is there. -ENOENT is the caller's to judge. */
int config_read(struct config *config, const char *path, struct error *err);
void config_deinit(struct config *config);
