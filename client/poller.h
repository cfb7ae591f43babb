/*
 * One descriptor for those who poll a connection: an epoll of its socket, which
 * changes when the broker comes back, and of an eventfd for what the socket
 * does not show.
 */
#pragma once
#include <stdbool.h>

struct error;

struct poller {
	int fd; /* the epoll; -1: nobody has asked for it */
	int signal_fd;
	int sock_fd; /* the socket in it; -1: none */
	bool is_for_sending;
	bool is_signalled;
};

#define POLLER_NULL ((struct poller){.fd = -1, .signal_fd = -1, .sock_fd = -1})

int poller_open(struct poller *ret, struct error *err);
void poller_close(struct poller *poller);

/* Be readable when `sock_fd` (-1: none) is, or, with `is_for_sending`, has
 * room; and as long as `is_signalled`. Nothing if it is not open. */
void poller_set(struct poller *poller, int sock_fd, bool is_for_sending,
		bool is_signalled);

/* The socket is about to be closed. That alone would leave it in the epoll as
 * long as a forked child has it open. */
void poller_forget_socket(struct poller *poller);
