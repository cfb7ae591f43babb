/*
 * What all nouns of the double share: one lock for all of this process's
 * state, and one condition for whoever waits for work to be done.
 *
 * Work runs without the lock. Everything else here is called with it, unless
 * its header says otherwise.
 */
#pragma once
#include "tests/fakes/cuda/api.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

struct process {
	bool is_initialised; /* cuInit() */
	/* Exit has begun: calls are refused, work is dropped. Without lock. */
	atomic_bool is_stopping;
	unsigned int n_threads; /* of streams */
};
extern struct process process;

void process_lock(void);
void process_unlock(void);
/* Until something has happened (process_wake()); lets go of the lock. */
void process_wait(void);
void process_wake(void);
/* The same with a condition of one's own. */
void process_wait_on(pthread_cond_t *condition);

/* Is this a child that was forked after cuInit()? Needs no lock. */
bool process_is_forked(void);
/* Count this process as initialised. */
void process_begin(void);
