/*
 * What one client can do to another: attacks on the broker's loop, each by
 * processes of another user, and how long a bystander waits meanwhile.
 */
#pragma once
#include "bench.h"
#include "daemon.h"
#include <stdint.h>

#define N_ATTACKERS 8

/* What an attacker knows; `index` counts from 0. */
struct attacker {
	const struct bench *bench;
	const char *socket; /* of the broker */
	struct fsdp_client *client;
	unsigned index;
};

struct attack {
	const char *name; /* rows are called hostile_<name> */
	const char *what;
	const char *config; /* of the broker; NULL: defaults */
	/* Before any attacker, once, with an `index` of N_ATTACKERS; NULL:
	 * there is nothing to prepare. What it published stays. */
	void (*prepare)(struct attacker *attacker);
	/* Once per attacker, before the bystander is looked at; NULL: nothing.
	 */
	void (*arm)(struct attacker *attacker);
	/* Again and again. Whatever the broker replies, it returns. */
	void (*strike)(struct attacker *attacker);
	unsigned min_seconds; /* that show it */
	/* The process that keeps the broker's descriptors is stopped, too. */
	bool has_deaf_keeper;
};

extern const struct attack attacks[];
extern const size_t n_attacks;

/* The first of `names` (to NULL) that is no attack; NULL: all are. */
const char *hostile_find_unknown(char **names);
