/*
 * Attacks of one client on another by way of the broker's loop. Each is made by
 * processes of another user, and a bystander's waits meanwhile are measured.
 */
#pragma once
#include "bench.h"
#include "daemon.h"
#include <stdint.h>

#define N_ATTACKERS 8

/* The state of an attacker. `index` counts from 0. */
struct attacker {
	const struct bench *bench;
	const char *socket; /* of the broker */
	struct fsdp_client *client;
	unsigned index;
	bool is_rehearsal; /* make everything small */
};

struct attack {
	const char *name; /* rows are called hostile_<name> */
	const char *what;
	const char *config; /* configuration of the broker; NULL for defaults */
	/* Prepares the attack once, before any attacker starts, with an `index`
	 * of N_ATTACKERS. What it publishes stays. May be NULL. */
	void (*prepare)(struct attacker *attacker);
	/* Prepares each attacker, before the bystander is measured. May be
	 * NULL. */
	void (*arm)(struct attacker *attacker);
	/* Attacks once, and is called again and again. Returns a negative
	 * number if it could not, because the broker refused what leads to
	 * it. */
	int (*strike)(struct attacker *attacker);
	unsigned min_seconds; /* the shortest run that shows it */
	/* Names that begin so end by themselves after the attack; or NULL. */
	const char *mortal;
	/* The process that keeps the broker's descriptors is stopped, too. */
	bool has_deaf_keeper;
};

extern const struct attack attacks[];
extern const size_t n_attacks;

/* Returns the first of `names`, which end with NULL, that is not an attack, or
 * NULL if all are. */
const char *hostile_find_unknown(char **names);
