/*
 * Hardware queues: a device takes the work of a process from a few of them,
 * from each in order, and many streams share one (FAKECUDA_QUEUES). Work that
 * waits stays at the head of its queue, and holds up what was queued later, of
 * other streams, too.
 *
 * All functions: with the process's lock.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#define QUEUES_MAX 32

struct stream;
struct work;

struct queue {
	uint64_t n_given; /* pieces of work of all time */
	uint64_t n_passed;
};

/* As cuInit() finds the environment: CUDA_DEVICE_MAX_CONNECTIONS. */
void queue_open(void);
/* That of a new stream; NULL: it shares none. */
struct queue *queue_choose(struct queue queues[QUEUES_MAX]);

void queue_give(struct queue *queue, struct work *work);
/* Wait until it is at the head; lets go of the lock. */
void queue_await(struct queue *queue, const struct work *work);
/* Let the next one be there. */
void queue_pass(struct queue *queue, uint64_t place);
