/*
 * Liveness checks: a rank that sleeps until other ranks have done something
 * looks now and then whether one of their processes is ending (ending.h), and
 * then asks the broker to look, too. So the death of a process with gigabytes
 * of memory is reported before the kernel has freed them.
 *
 * The ranks' process numbers on the board are those that the broker sees. If
 * this process is in another PID namespace, they may belong to other processes;
 * then the broker finds nothing.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct fsdp_comm;

struct liveness {
	/* the earliest time to ask the broker; 0: it was not asked */
	int64_t next_ns;
};

/* Return the time until which to sleep in a wait that lasts until `end_ns`.
 * Both are on the clock of bell_now_ns(). */
int64_t liveness_next_ns(int64_t end_ns);

/*
 * Look after a sleep until `until_ns` in which this rank waited for `ranks` (0:
 * any of them), unless a signal ended the sleep early. Returns whether to sleep
 * on.
 */
bool liveness_check(struct fsdp_comm *comm, uint64_t ranks, int64_t until_ns,
		    int64_t end_ns);
