/*
 * The priority of the loop's thread.
 *
 * The service manager starts the broker with a priority above that of processes
 * that compute, so that a request does not wait for a CPU. Threads and child
 * processes that move bytes must not have it: they would take the CPUs from the
 * processes that they work for.
 */
#pragma once

struct error;

/* Have threads and processes that this thread makes from now on begin at nice 0
 * if this one's is negative. */
int priority_keep_own(struct error *err);
