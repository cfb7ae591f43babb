/*
 * Attacks of one client on another by way of the broker's loop. Processes of
 * another user attack, while a bystander measures how long it waits.
 */
#pragma once
#include "bench.h"
#include "daemon.h"
#include <stdint.h>

#define N_ATTACKERS 8

/* An attacker. `index` counts from 0. */
struct attacker {
	const struct bench *bench;
	const char *socket; /* of the broker */
	struct fsdp_client *client;
	unsigned index;
	bool is_rehearsal; /* all objects are small and few */
};

struct attack {
	const char *name; /* rows are called hostile_<name> */
	const char *what;
	const char *config; /* configuration of the broker; NULL for defaults */
	/* Prepares the attack once, before any attacker starts. Its `index` is
	 * N_ATTACKERS. What it publishes stays. May be NULL. */
	void (*prepare)(struct attacker *attacker);
	/* Prepares each attacker, before the bystander is measured. May be
	 * NULL. */
	void (*arm)(struct attacker *attacker);
	/* Attacks once. It is called again and again. Returns a negative number
	 * if the broker refused the requests that the attack needs. */
	int (*strike)(struct attacker *attacker);
	/* shortest run that shows the effect; 0 for any */
	unsigned min_seconds;
	/* Names with this prefix end by themselves after the attack. May be
	 * NULL. */
	const char *mortal;
	/* The process that keeps the broker's descriptors is stopped, too. */
	bool has_deaf_keeper;
};

extern const struct attack attacks[];
extern const size_t n_attacks;

/* Returns the first of `names`, which end with NULL, that is not an attack, or
 * NULL if all are. */
const char *hostile_find_unknown(char **names);
