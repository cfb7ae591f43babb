/*
 * A broker under load while everything goes wrong.
 *
 * Clients do everything at random and check what they read (tests/lib/soak.h),
 * and ranks train to a result that is known to the last bit
 * (tests/lib/exact.h). All chance follows from one seed, and the storm counts
 * operations of the clients, not time.
 */
#pragma once
#include "tests/lib/chance.h"
#include "tests/lib/chaos.h"
#include "tests/lib/exact.h"
#include "tests/lib/soak.h"
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define STORM_CLIENTS 4
#define STORM_RANKS   2

/* How often each thing happened. */
struct tally {
	unsigned int clients, ranks, workers, brokers; /* killed */
	unsigned int out_of_memory; /* brokers that the kernel killed */
	unsigned int stops, failures, hoards, limits, cgroups, jumps;
	unsigned int lost; /* clients and ranks that lost their sessions */
};

struct storm {
	struct chance chance;
	struct chaos chaos;
	struct soak *soak;
	struct exact_board *training;
	pid_t clients[STORM_CLIENTS], ranks[STORM_RANKS];
	uint64_t n_born;
	uint64_t broker_rest_ms; /* it may not be killed before */
	_Atomic int64_t *clock;  /* offsets, see tests/fakes/clock.c; NULL */
	struct tally tally;
};

/* --- life: storm.c ------------------------------------------------------- */

/* Start what is not running, after a look at how it ended. */
void storm_revive(struct storm *storm);
/* Until the clients have done `n` more operations. */
void storm_await(struct storm *storm, uint64_t n);
/* Begin the load; end it, and let what has a time go. */
void storm_begin(struct storm *storm);
void storm_end(struct storm *storm);

/* --- what goes wrong ----------------------------------------------------- */

typedef void trouble_fn(struct storm *storm);

/* kill.c */
trouble_fn kill_client, kill_rank, kill_worker, kill_broker;
trouble_fn stop_client, stop_rank, stop_worker, stop_broker;
/* Has the broker rested since its last death? Then it rests from now on. */
bool broker_may_die(struct storm *storm);

/* shortage.c */
trouble_fn fail_calls, fill_pool, limit_descriptors;
/* A client that takes all memory that it can have, until it is killed. */
pid_t hoarder_start(struct storm *storm);
void hoarder_end(struct storm *storm, pid_t pid);

/* cgroup.c: the broker at the limit of its memory cgroup. */
bool cgroup_open(const struct storm *storm);
void cgroup_close(void);
trouble_fn limit_memory;

/* clock.c */
void clock_prepare(struct storm *storm); /* before the broker starts */
void clock_finish(struct storm *storm);
trouble_fn jump_clocks;

/* --- what is left: inventory.c ------------------------------------------- */

struct inventory {
	char *lines[512]; /* descriptors and shared mappings of a process */
	size_t n;
};

/* The broker's, when it has closed all that it is about to close: it has not
 * changed for a while. */
void inventory_settle(const struct storm *storm, struct inventory *ret);
void inventory_drop(struct inventory *inventory);
/* Has the broker soon the same, no less and no more? Else it prints what
 * differs. */
bool inventory_await(const struct storm *storm,
		     const struct inventory *expected);
/* Bytes of the chunks that the supervisor keeps. */
uint64_t inventory_chunk_bytes(pid_t supervisor);
