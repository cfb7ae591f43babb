/*
 * Hardware queues: a device takes the work of a process from a few queues, from
 * each in order, and many streams share a queue (FAKECUDA_QUEUES). Work that
 * waits stays at the head of its queue, and delays work that was queued later,
 * even that of other streams.
 *
 * The caller of each function holds the process's lock.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#define QUEUES_MAX 32

struct work;

struct queue {
	uint64_t n_given; /* pieces of work since the start */
	uint64_t n_passed;
};

/* Reads CUDA_DEVICE_MAX_CONNECTIONS, for cuInit(). */
void queue_open(void);
/* Returns the queue of a new stream, or NULL if streams do not share queues. */
struct queue *queue_choose(struct queue queues[QUEUES_MAX]);

void queue_give(struct queue *queue, struct work *work);
/* Waits until the work is at the head. Releases the lock meanwhile. */
void queue_await(struct queue *queue, const struct work *work);
/* Lets the next piece of work come to the head. */
void queue_pass(struct queue *queue, uint64_t place);
