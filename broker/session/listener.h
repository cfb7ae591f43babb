/*
 * The listening socket.
 */
#pragma once
#include <stdbool.h>
#include <uv.h>

struct sessions;
struct error;

struct listener {
	uv_poll_t poll;
	int fd; /* owned */
	/* Owned; closed for a moment to accept and close a connection when no
	 * descriptors are left. */
	int spare_fd;
	char *path;          /* owned, to be unlinked at the end; NULL */
	bool is_without_fds; /* see listener_update() */
	bool is_open;
	bool is_full_noted; /* a rejected connection was logged */
};

/* Listen on `path` (or take `listen_fd`, consumed, if >= 0), and
 * accept peers. */
int listener_open(struct sessions *sessions, const char *path, int listen_fd,
		  struct error *err);

/* Only bind and listen; for the parent of --supervised. */
int listener_bind(const char *path, int *ret_fd, struct error *err);

void listener_close(struct listener *listener);

/*
 * While some user has too many descriptors to close, no client can send
 * descriptors before its connection was accepted (Linux 6.16), when the broker
 * knows whose it is. Until then libfsdp sends its hello again and again.
 */
void listener_update(struct sessions *sessions);
