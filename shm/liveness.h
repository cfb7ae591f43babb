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
	_Atomic int64_t next_ns; /* the earliest time of the next look */
};

/* Returns the time until which to sleep in a wait that began at `since_ns` and
 * lasts until `end_ns`. All are on the clock of bell_now_ns(). */
int64_t liveness_next_ns(int64_t since_ns, int64_t end_ns);

/* Looks, in a wait that began at `since_ns`, at these processes, which have
 * numbers below 64. Returns the first one that is ending, or LIVENESS_NONE. It
 * does not look in a wait that has just begun, nor soon after another look, so
 * that a call without a wait costs nothing. */
#define LIVENESS_NONE UINT32_MAX
typedef uint32_t liveness_pid_fn(const void *data, uint32_t number);
uint32_t liveness_find(struct liveness *liveness, int64_t since_ns,
		       uint64_t processes, liveness_pid_fn *pid,
		       const void *data);

/* Puts off the next look after the broker was asked. If it did not agree, the
 * numbers belong to other processes for this process. */
void liveness_pause(struct liveness *liveness);
