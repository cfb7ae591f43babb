/*
 * The bare messages with which our requests are compared. The server only waits
 * in epoll, receives a message, and sends as many bytes as the message says. It
 * has the same kind of socket, the same sizes and the same CPUs as ours, but no
 * protocol and no state.
 */
#pragma once
#include "bench.h"
#include "child.h"
#include <stddef.h>
#include <stdint.h>

/* The sizes of one request of ours and its reply. */
struct floor_sizes {
	uint32_t request, reply;
};

struct floor {
	struct child server;
	int socks[2]; /* owned, one for each peer */
};

void floor_start(struct floor *floor, const struct bench *bench);
void floor_stop(struct floor *floor);

/* Send a request and sleep until the reply arrives. */
void floor_call(int sock_fd, struct floor_sizes sizes);
/* Do the same, but the server first sends `forward_size` bytes to the other
 * peer, as a publication does that wakes a waiter. */
void floor_call_and_forward(int sock_fd, struct floor_sizes sizes,
			    uint32_t forward_size);
/* Send a request that gets no reply, such as a get that is parked. */
void floor_park(int sock_fd, uint32_t request_size);
/* Sleep until the other peer's request is forwarded. */
void floor_wait(int sock_fd);

/* Returns the sizes of the last request and reply of this process. */
struct floor_sizes floor_last_sizes(void);

/* Returns the sizes for the get of a name that this process asks for the first
 * time. */
struct floor_sizes floor_weigh_get(const char *socket);
