/*
 * A rank that sleeps until other ranks have done something looks now and then
 * whether a process of theirs is ending (ending.h), and then asks the broker to
 * look, too. So the death of a process with gigabytes of memory is told before
 * the kernel has freed them.
 *
 * The ranks' numbers of processes are the broker's, as the board has them.
 * Where this process is in another PID namespace, they may be those of other
 * processes; the broker then finds nothing.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct fsdp_comm;

struct lookout {
	int64_t next_ns; /* do not ask the broker before; 0: it was not asked */
};

/* Returns until when to sleep in a wait that lasts until `end_ns`, both on the
 * clock of bell_now_ns(). */
int64_t lookout_until(int64_t end_ns);

/*
 * A sleep until `until_ns` is over, in which this rank waited for `ranks` (0:
 * any of them). Looks, if the time has come, and returns whether to sleep on; a
 * signal ended the sleep if it has not come.
 */
bool lookout_look(struct fsdp_comm *comm, uint64_t ranks, int64_t until_ns,
		  int64_t end_ns);
