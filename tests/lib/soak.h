/*
 * Clients that do everything at random on the same names, and check all that
 * they read.
 *
 * Contents check themselves: the first word of a tensor is a number that only
 * its maker used, all others follow from that number and the name.
 */
#pragma once
#include "client/fsdp.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define SOAK_NAMES   6 /* replaced, never removed */
#define SOAK_BUNDLES 2
#define SOAK_TICKETS 8
/* Exit status of a client that could not connect, or lost its session. */
#define SOAK_LOST 3

/* Shared by clients and test; zero, but for the first two fields. */
struct soak {
	const char *socket; /* set before the first client is started */
	/* May memory and descriptors run out? Then a refusal is no failure. */
	bool is_harsh;
	atomic_int must_end;
	_Atomic uint64_t n_ops, n_refused;
	/* The number of a version of a name, when it was first seen. */
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
	uint64_t first_number; /* that it gives to a tensor */
};

/* A client's whole life, in a process of its own (child_start()). */
void soak_client(void *life);

/* For audit(). */
bool soak_check_entry(struct fsdp_client *client,
		      const struct fsdp_entry *entry);
