/*
 * One descriptor for programs that poll a connection: an epoll with the socket,
 * which changes when the broker is restarted, and an eventfd for events that
 * the socket does not show.
 */
#pragma once
#include <stdbool.h>

struct error;

struct poller {
	int fd; /* the epoll; -1: not created yet */
	int signal_fd;
	int mark;    /* of both descriptors: own_fd.h */
	int sock_fd; /* the socket in the epoll; -1: none */
	bool is_for_sending;
	bool is_signalled;
};

#define POLLER_NULL ((struct poller){.fd = -1, .signal_fd = -1, .sock_fd = -1})

int poller_open(struct poller *ret, int mark, struct error *err);
void poller_close(struct poller *poller);

/* Make the descriptor readable when `sock_fd` (-1: none) is readable or, with
 * `is_for_sending`, writable, and while `is_signalled`. Does nothing if the
 * poller is not open. */
void poller_set(struct poller *poller, int sock_fd, bool is_for_sending,
		bool is_signalled);

/* Remove the socket before it is closed. Otherwise it would stay in the epoll
 * while a forked child has it open. */
void poller_forget_socket(struct poller *poller);
