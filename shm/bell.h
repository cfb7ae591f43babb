/*
 * Bells: how a process waits for words that others write in shared memory, and
 * how it is woken, without a system call unless a process must sleep.
 *
 * A waiter checks its condition; yields its CPU at once if a process that it
 * waits for was last seen on the same CPU, since checking would keep that
 * process from running; spins for a while; and then sleeps in the kernel. A
 * process that makes a condition true rings, which costs one load if there is
 * no sleeper.
 *
 *   waiter                          ringer
 *   seen = word                     store what makes the condition true
 *   sleepers += 1                   sleepers == 0 ?  done
 *   condition or end ?  awake                     :  word += 1, wake all
 *   sleep if word == seen
 *   sleepers -= 1
 *
 * Why no wake-up is lost: the waiter counts itself and then checks the
 * condition, and the ringer makes the condition true and then reads the count.
 * All four accesses are seq_cst, so the second of the two sees the access of
 * the first (the argument of refs.h). Once the waiter is counted, the ringer
 * changes the word, and the kernel does not let the waiter sleep on an old
 * value. Therefore conditions are stored and loaded seq_cst.
 *
 * A process that dies asleep leaves the count too high, which causes needless
 * wake-ups until the memory is freed. A process that dies between its store and
 * the wake-up leaves the others asleep; so the process that ends a run stores
 * the end and rings by bell_ring_always().
 *
 * tests/model/board.pml models this protocol, and shows the failure that each
 * omitted step causes.
 */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct bell {
	_Alignas(64) _Atomic uint32_t word; /* the kernel compares it */
	_Atomic uint32_t sleepers;
};

/* Returns whether a condition of a wait is true. */
typedef bool bell_look_fn(const void *data);

struct bell_wait {
	bell_look_fn *is_met;
	bell_look_fn *is_over; /* the condition will never become true */
	/* A process that the wait depends on uses this CPU. It is only a
	 * hint. */
	bell_look_fn *is_beside;
	const void *data;
};

enum bell_outcome {
	BELL_MET = 0,
	BELL_OVER = 1,
	BELL_AGAIN = 2, /* the time has expired, or a signal was caught */
};

/* Waits until `until_ns` on the clock of bell_now_ns(). BELL_MET takes
 * precedence over an expired time. */
enum bell_outcome bell_wait(struct bell *bell, const struct bell_wait *wait,
			    int64_t until_ns);

/* The same for a thread that has no other work: it sleeps at once. */
enum bell_outcome bell_sleep(struct bell *bell, const struct bell_wait *wait,
			     int64_t until_ns);

/* Wakes waiters. The caller has made a condition true by a seq_cst store. */
void bell_ring(struct bell *bell);
/* The same if any one of the sleeping threads can use the change, and each
 * thread that is woken checks for it. */
void bell_ring_one(struct bell *bell);
/* The same as bell_ring(), for a caller that may ring in place of a process
 * that has died. It does not check for sleepers. */
void bell_ring_always(struct bell *bell);

/* Returns the time of CLOCK_MONOTONIC in nanoseconds. */
int64_t bell_now_ns(void);
/* Returns the time of the same clock at the kernel's last tick, which is some
 * milliseconds ago. It is read seven times as fast, and is good enough for the
 * beginnings of time-outs, which even the shortest wait needs. */
int64_t bell_recent_ns(void);
