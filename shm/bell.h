/*
 * Bells: how a process waits for words that others write in shared memory, and
 * how it is woken, without a system call unless somebody has to sleep.
 *
 * Who waits looks; gives up its CPU at once if one that it waits for was last
 * seen there, since looking would keep it from coming; spins for a while;
 * and sleeps in the kernel. Who makes a condition true rings, which is one load
 * if nobody sleeps.
 *
 *   waiter                          ringer
 *   seen = word                     store what makes the condition true
 *   sleepers += 1                   sleepers == 0 ?  done
 *   condition or end ?  awake                     :  word += 1, wake all
 *   sleep if word == seen
 *   sleepers -= 1
 *
 * Why no wake is lost: the waiter counts itself and then looks at the
 * condition, the ringer makes it true and then looks at the count, all four
 * seq_cst, so that whoever is second sees the first (the argument of refs.h).
 * Once the waiter is counted the ringer changes the word, and the kernel does
 * not let it sleep on an old one. So conditions are stored and read seq_cst. A
 * process that dies asleep leaves the count too high: needless wakes, until the
 * memory ends. One that dies between its store and the wake leaves the others
 * asleep: so who ends a run stores the end and rings by bell_ring_always().
 *
 * tests/model/board.pml has this protocol and what goes wrong without each of
 * its steps.
 */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct bell {
	_Alignas(64) _Atomic uint32_t word; /* the kernel compares it */
	_Atomic uint32_t sleepers;
};

/* About what a wait waits for. */
typedef bool bell_look_fn(const void *data);

struct bell_wait {
	bell_look_fn *is_met;
	bell_look_fn *is_over; /* it will never be met */
	/* Does somebody that is waited for use this CPU? Only a hint. */
	bell_look_fn *is_beside;
	const void *data;
};

enum bell_outcome {
	BELL_MET = 0,
	BELL_OVER = 1,
	BELL_AGAIN = 2, /* the time is over, or a signal came */
};

/* `until_ns` is of bell_now_ns(). What is met is met also when the time is
 * over. */
enum bell_outcome bell_wait(struct bell *bell, const struct bell_wait *wait,
			    int64_t until_ns);

/* After a seq_cst store that may have met the condition of others. */
void bell_ring(struct bell *bell);
/* The same for one that others may have to do for a process that has died. */
void bell_ring_always(struct bell *bell);

/* CLOCK_MONOTONIC. */
int64_t bell_now_ns(void);
