/*
 * A broker under load, while failures of all kinds happen.
 *
 * Clients make random calls and check what they read (tests/lib/soak.h), and
 * ranks train to a result that is known to the last bit (tests/lib/exact.h).
 * All random choices follow from one seed. The storm counts operations of the
 * clients, not time.
 */
#pragma once
#include "tests/lib/chance.h"
#include "tests/lib/chaos.h"
#include "tests/lib/exact.h"
#include "tests/lib/inventory.h"
#include "tests/lib/soak.h"
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define STORM_CLIENTS 4
#define STORM_RANKS   2

/* This struct counts how often each thing happened. */
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
	uint64_t broker_rest_ms; /* it may not be killed before this time */
	_Atomic int64_t *clock;  /* offsets (tests/fakes/clock.c), or NULL */
	struct tally tally;
};

/* --- life: storm.c ------------------------------------------------------- */

/* Start the processes that have ended, and check how they ended. */
void storm_revive(struct storm *storm);
/* Wait until the clients have done `n` more operations. */
void storm_await(struct storm *storm, uint64_t n);
/* Begin and end the load. The end waits until tickets and names with a time to
 * live are gone. */
void storm_begin(struct storm *storm);
void storm_end(struct storm *storm);

/* --- what goes wrong ----------------------------------------------------- */

typedef void trouble_fn(struct storm *storm);

/* kill.c */
trouble_fn kill_client, kill_rank, kill_worker, kill_broker;
trouble_fn stop_client, stop_rank, stop_worker, stop_broker;
/* Returns whether enough time has passed since the broker's last death. If so,
 * the next rest begins. */
bool broker_may_die(struct storm *storm);

/* shortage.c */
trouble_fn fail_calls, fill_pool, limit_descriptors;
/* Start and kill a client that allocates all memory that it can. */
pid_t hoarder_start(struct storm *storm);
void hoarder_end(struct storm *storm, pid_t pid);

/* cgroup.c */
bool cgroup_open(const struct storm *storm);
void cgroup_close(void);
trouble_fn limit_memory;

/* clock.c */
void clock_prepare(struct storm *storm); /* call it before the broker starts */
void clock_finish(struct storm *storm);
trouble_fn jump_clocks;
