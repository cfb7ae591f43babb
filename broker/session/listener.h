/*
 * The listening socket.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

struct sessions;
struct error;

struct listener {
	uv_poll_t poll;
	int fd; /* owned */
	/* Owned; closed for a moment when no descriptors are left, so that a
	 * connection can be accepted and closed. */
	int spare_fd;
	/* owned; removed at the end; NULL if the socket is inherited */
	char *path;
	bool is_without_fds; /* see listener_update() */
	bool is_open;
	bool is_full_noted;      /* a rejected connection was logged */
	uint32_t pause_position; /* of the deadline at which a pause ends */
};

/* Listen on `path`, or on `listen_fd` if it is not negative, and accept peers.
 * `listen_fd` is consumed. */
int listener_open(struct sessions *sessions, const char *path, int listen_fd,
		  struct error *err);

/* Make the socket of the parent of --supervised: bind it and listen, but accept
 * no peers. */
int listener_bind(const char *path, int *ret_fd, struct error *err);

/* Close the listening socket, and remove its file if listener_open() made it.
 * Idempotent. */
void listener_close(struct listener *listener);

/*
 * Set whether clients can send descriptors before their connection is accepted.
 * While some user has too many descriptors to close they cannot (Linux 6.16),
 * because the broker does not know yet whose connection it is. Until then
 * libfsdp repeats its hello.
 *
 * At other times they can, since the hello of a client that reconnects brings
 * two descriptors. To refuse them always, the protocol would need a second
 * frame for these, and little would be gained: descriptors in sockets that were
 * not accepted count against the RLIMIT_NOFILE of their sender.
 */
void listener_update(struct sessions *sessions);
