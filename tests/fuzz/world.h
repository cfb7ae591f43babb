/*
 * A node in the fuzzer's process: a broker, the keeper of its files, and
 * processes. What the broker asks of the kernel is answered by kernel.h, all
 * else is the product's.
 */
#pragma once
#include "broker/broker.h"
#include <stdbool.h>
#include <stdint.h>

extern struct broker *world_broker;

/* Make a broker without clients, and the processes. */
void world_open(void);

/* End all processes, remove everything, and check that nothing is left. */
void world_close(void);

/* Let time pass for the broker. */
void world_sleep(uint64_t ms);

/* Stop the broker and start the next one with the files that were kept. */
void world_restart(void);

/* Run what is due. With `waits`, do so until only clients and time can cause
 * more work. */
void world_run(bool waits);
