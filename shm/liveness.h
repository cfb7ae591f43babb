/*
 * Liveness checks: a process that sleeps until other processes have done
 * something looks now and then whether one of them is ending (ending.h), and
 * then asks the broker to look, too. So the death of a process with gigabytes
 * of memory is reported before the kernel has freed them.
 *
 * The process numbers in shared memory are those that the broker sees. If the
 * process that looks is in another PID namespace, they may belong to other
 * processes; then the broker finds nothing.
 */
#pragma once
#include <stdatomic.h>
#include <stdint.h>

struct liveness {
	/* the earliest time of the next look; 0: the broker always agreed */
	_Atomic int64_t next_ns;
};

/* The time after which a process looks for the first time. */
#define LIVENESS_MIN_NS INT64_C(20000000)

/* Returns the time until which to sleep in a wait that began at `since_ns` and
 * lasts until `end_ns`. All are on the clock of bell_now_ns(). */
int64_t liveness_next_ns(int64_t since_ns, int64_t end_ns);

/* Looks after a sleep at these processes, which have numbers below 64. Returns
 * the first one that is ending, or LIVENESS_NONE. */
#define LIVENESS_NONE UINT32_MAX
typedef uint32_t liveness_pid_fn(const void *data, uint32_t number);
uint32_t liveness_find(struct liveness *liveness, uint64_t processes,
		       liveness_pid_fn *pid, const void *data);

/* Call this if the broker did not agree: for this process the numbers belong to
 * other processes, so it looks less often. */
void liveness_pause(struct liveness *liveness);
