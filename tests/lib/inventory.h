/*
 * What a broker has open and mapped, to tell that nothing is left of its
 * clients. inventory_settle() waits until the broker's inventory has not
 * changed for a while, because it still closes descriptors after its last
 * reply.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct daemon;

struct inventory {
	char *lines[512]; /* descriptors and shared mappings of a process */
	size_t n;
};

void inventory_settle(const struct daemon *daemon, struct inventory *ret);
void inventory_drop(struct inventory *inventory);
/* Waits until the broker's inventory is as expected. Returns false if that does
 * not happen, and prints the differences. */
bool inventory_await(const struct daemon *daemon,
		     const struct inventory *expected);
/* Returns the bytes of the chunks that the supervisor keeps. */
uint64_t inventory_chunk_bytes(pid_t supervisor);
