/*
 * How much memory there is for the broker.
 */
#pragma once
#include <stdint.h>

struct error;

/* MemTotal of /proc/meminfo, in bytes. */
int machine_memory(uint64_t *ret, struct error *err);
/* The memory limit of our cgroup, in both versions of cgroups; UINT64_MAX:
 * none. */
uint64_t machine_memory_limit(void);
