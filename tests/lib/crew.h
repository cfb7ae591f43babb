/*
 * A broker of its own for each test, with small chunks, a client of it
 * (client.h), and ranks that train in the communicator "test".
 */
#pragma once
#include "tests/lib/client.h"
#include "tests/lib/ranks.h"
#include "tests/lib/trainer.h"
#include <string.h>

#define LAYER(name_, params_, ...)                                             \
	{                                                                      \
		.name = name_, .params = params_,                              \
		.n = sizeof(params_) / sizeof(*(params_)), __VA_ARGS__         \
	}

extern struct ranks ranks;

void crew_setup(void);
/* Does the same with a broker that its supervisor restarts when it dies. */
void crew_setup_supervised(void);
void crew_teardown(void);
/* Continues with another broker. Its memory is one chunk of 16 MiB and, if
 * ranks work alone, the board of a run of that many ranks. */
void crew_use_little_memory(uint32_t n_ranks);

/* Starts ranks that have joined "test" with the options and layers of
 * `crew`. */
void crew_start(uint32_t n, const struct crew *crew);
/* Does the same. Each rank can be stopped at a failpoint. */
void crew_start_mortal(uint32_t n, const struct crew *crew);

/* How the last rank dies, and what the other ranks do meanwhile. */
struct death {
	/* The rank dies at the n-th passage of this failpoint from now on. */
	const char *point;
	unsigned int n;
	/* The other ranks are held at this failpoint until the broker has
	 * noticed the death. If this prevents the last rank from reaching its
	 * own failpoint, the rank dies asleep, because it has most probably
	 * passed the failpoint once. If it is NULL, the others sleep. */
	const char *held_at;
};
/* At this failpoint a rank is held before it spins in a wait. */
#define SPINNING "bell.spins"

/* Runs `fn` in all ranks. One rank must die in the given way, and the others
 * must return -ECONNABORTED, with a sentence that names it. Stops the ranks.
 * Returns how many were held. */
uint32_t expect_death_is_told(const struct death *death, actor_fn *fn);

/* Returns the sentence that the rank received last. */
const char *sentence(uint32_t rank);

/* Returns the entry of the only communicator. */
struct fsdp_comm_entry comm_entry(void);
/* Tells all ranks to leave, and expects that only the kept groups have memory
 * then. */
void expect_memory_back(void);
/* Stops the worker until it gets SIGCONT. Returns its pid. */
pid_t freeze_worker(void);

/* --- in a rank ----------------------------------------------------------- */

/* Calls for one layer, as ranks_run() takes them. begin0() only begins to
 * unshard, and a later call returns the result; check0() returns -EIO unless
 * the parameters are whole. */
actor_fn unshard0, reshard0, begin0, await0, check0;
actor_fn unshard1, reshard1, begin1, await1;
actor_fn unshard2, reshard2, begin2, await2;
actor_fn reshard3, begin3, await3;

/* Leaves the communicator, but stays connected. */
int crew_leave_comm(void);
/* Returns the board of the run, as libfsdp has mapped it. */
void *crew_board(size_t *ret_size);
