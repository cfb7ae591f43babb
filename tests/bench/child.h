/*
 * Other processes of a row, such as a waiter, a consumer, a victim, or the
 * server of a floor. A child is forked, ends with the row that started it, and
 * exchanges whole messages with it over a socket pair.
 */
#pragma once
#include <stddef.h>
#include <sys/types.h>

struct child {
	pid_t pid;
	int sock_fd; /* owned */
};

/* `sock_fd` leads to the parent, or is -1. The process ends when the function
 * returns. */
typedef void child_fn(int sock_fd, void *data);

/* Fork, and run `fn` on `cpu`. Fork before connecting, because a child needs a
 * connection of its own. */
void child_start(struct child *child, int cpu, child_fn *fn, void *data);
/* Wait for the child. Calls die() unless it ended well. */
void child_wait(struct child *child);
/* Kill the child, if it has not ended, and wait for it. */
void child_kill(struct child *child);

/* Send or receive one whole message of that size. Calls die() on anything
 * else. */
void message_send(int sock_fd, const void *data, size_t size);
void message_receive(int sock_fd, void *ret, size_t size);
