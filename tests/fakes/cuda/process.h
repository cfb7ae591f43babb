/*
 * State that all files of the fake share: one lock for all of this process's
 * state, and one condition for threads that wait for work to be done. Work runs
 * without the lock. The caller of every other function holds it, unless its
 * header says otherwise.
 */
#pragma once
#include "tests/fakes/cuda/api.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

struct process {
	bool is_initialised; /* set by cuInit() */
	/* Exit has begun: calls are refused, work is dropped. It is read
	 * without the lock. */
	atomic_bool is_stopping;
	unsigned int n_threads; /* threads of streams */
	unsigned int n_holds;   /* fake_hold_memory() */
};
extern struct process process;

void process_lock(void);
void process_unlock(void);
/* Waits until process_wake() is called. Releases the lock meanwhile. */
void process_wait(void);
void process_wake(void);
/* Does the same with a condition of the caller's. */
void process_wait_on(pthread_cond_t *condition);

/* Returns whether this is a child that was forked after cuInit(). The caller
 * need not hold the lock. */
bool process_is_forked(void);
/* Counts this process as initialised. */
void process_begin(void);
