/*
 * The bare messages that ours are compared with: a server that does nothing
 * but wait in epoll, receive, and send as many bytes as it was told to.
 *
 * Same kind of socket, same sizes, same CPUs as ours; no protocol, no state.
 */
#pragma once
#include "bench.h"
#include "child.h"
#include <stddef.h>
#include <stdint.h>

/* What one request of ours weighs. */
struct floor_sizes {
	uint32_t request, reply;
};

struct floor {
	struct child server;
	int socks[2]; /* owned: of the first peer and of the second */
};

void floor_start(struct floor *floor, const struct bench *bench);
void floor_stop(struct floor *floor);

/* Send a request and sleep until the reply is there. */
void floor_call(int sock_fd, struct floor_sizes sizes);
/* The same, but the server first sends `forward_size` bytes to the other
 * peer: what a publish does that wakes a waiter. */
void floor_call_and_forward(int sock_fd, struct floor_sizes sizes,
			    uint32_t forward_size);
/* A request without an answer: a get that is parked. */
void floor_park(int sock_fd, uint32_t request_size);
/* Sleep until the other peer's request is forwarded. */
void floor_wait(int sock_fd);

/* Sizes of the last request and reply of this process. */
struct floor_sizes floor_last_sizes(void);

/* What the get of a name weighs that this process asks for the first time. */
struct floor_sizes floor_weigh_get(const char *socket);
