/*
 * The memory of the machine that the broker may use.
 */
#pragma once
#include <stdint.h>

struct error;

/* Returns MemTotal of /proc/meminfo, in bytes. */
int machine_memory(uint64_t *ret, struct error *err);
/* Returns the memory limit of our cgroup, in both versions of cgroups;
 * UINT64_MAX: there is no limit. */
uint64_t machine_memory_limit(void);
