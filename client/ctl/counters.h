/*
 * The counters that the broker reports, by name.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct error;
struct fsdp_client;

struct counter {
	char *name;
	uint64_t value;
};

struct counters {
	struct counter *list; /* in the broker's order */
	size_t n;
	char *note; /* hints for the operator; "" if there are none */
};

#define COUNTERS_NULL ((struct counters){0})

int counters_read(struct fsdp_client *client, struct counters *ret,
		  struct error *err);
void counters_deinit(struct counters *counters);

/* Returns 0 if the broker does not report this counter. */
uint64_t counters_find(const struct counters *counters, const char *name);
