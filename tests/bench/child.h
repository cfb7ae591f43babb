/*
 * Second processes of a row: a waiter, a consumer, a victim, a floor's server.
 *
 * A child is forked, ends with the row that started it, and talks to it over
 * a socket pair of whole messages.
 */
#pragma once
#include <stddef.h>
#include <sys/types.h>

struct child {
	pid_t pid;
	int sock_fd; /* owned */
};

/* `sock_fd` leads to the parent, or is -1; the process ends when it returns. */
typedef void child_fn(int sock_fd, void *data);

/* Fork; run `fn` on `cpu`. Fork before connecting: a child has its own. */
void child_start(struct child *child, int cpu, child_fn *fn, void *data);
/* Wait for it; die() unless it ended well. */
void child_wait(struct child *child);
/* Kill it, if it has not ended, and wait. */
void child_kill(struct child *child);

/* One whole message of that size; die() on anything else. */
void message_send(int sock_fd, const void *data, size_t size);
void message_receive(int sock_fd, void *ret, size_t size);
