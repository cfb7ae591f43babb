/*
 * The priority of the loop's thread, and its time slice.
 *
 * The service manager starts the broker with a priority above that of processes
 * that compute, so that a request does not wait for a CPU. Threads and child
 * processes that move bytes must not have it: they would take the CPUs from the
 * processes that they work for.
 *
 * The loop works for some microseconds at a time. By a short time slice it asks
 * the scheduler to run it before processes that have a longer one, as soon as
 * it has something to do; its share of the CPUs stays the same. That needs no
 * privilege.
 */
#pragma once

struct error;

/* Gives this thread a short time slice. Threads and processes that it makes
 * from now on have the usual one, and begin at nice 0 if its own nice is
 * negative. If its nice is not negative, a thread keeps another scheduling
 * policy that it has. */
int priority_set(struct error *err);
