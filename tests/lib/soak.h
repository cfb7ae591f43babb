/*
 * Clients that do all operations at random on the same names, and check all
 * data that they read.
 *
 * The contents make the check possible: the first word of a tensor is a number
 * that only its maker used, and all others follow from that number and the
 * name.
 */
#pragma once
#include "client/fsdp.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define SOAK_NAMES   6 /* names that are replaced, but never removed */
#define SOAK_BUNDLES 2
#define SOAK_TICKETS 8
/* Exit status of a client that could not connect, or lost its session. */
#define SOAK_LOST 3

/* Clients and test share it. It is zero, except for the first two fields. */
struct soak {
	const char *socket; /* set before the first client is started */
	/* Set if memory and descriptors may run out, so that a refusal is not a
	 * failure. */
	bool is_harsh;
	atomic_int must_end;
	_Atomic uint64_t n_ops, n_refused;
	/* The number in each version of a name, as it was first seen. */
	_Atomic uint64_t seen[SOAK_NAMES][1 << 16];
	struct {
		atomic_int lock;
		bool is_there;
		struct fsdp_ticket ticket;
		uint64_t number;
	} tickets[SOAK_TICKETS];
};

struct soak_life {
	struct soak *soak;
	uint64_t seed;         /* odd */
	uint64_t first_number; /* the first number that it writes to a tensor */
};

/* Runs a client in a process of its own (child_start()). */
void soak_client(void *life);

/* This is a callback for audit(). */
bool soak_check_entry(struct fsdp_client *client,
		      const struct fsdp_entry *entry);

/* Waits until no name and no ticket has a time to live. */
void soak_await_deadlines(struct fsdp_client *client);
