/*
 * The listening socket.
 */
#pragma once
#include <stdbool.h>
#include <uv.h>

struct broker;
struct error;

struct listener {
	uv_poll_t poll;
	int fd;       /* owned */
	int spare_fd; /* owned; given up for a moment to turn a peer away when
			 there are no descriptors left */
	char *path;   /* ours to unlink; NULL */
	bool is_without_fds; /* see listener_update() */
	bool is_open;
	bool is_full_noted; /* that a peer was turned away */
};

/* Listen on `path` (or take `listen_fd`, consumed, if >= 0); accepts peers. */
int listener_open(struct broker *broker, const char *path, int listen_fd,
		  struct error *err);

/* Bind and listen only; for the parent of --supervised. */
int listener_bind(const char *path, int *ret_fd, struct error *err);

void listener_close(struct listener *listener);

/*
 * While some user has too much to close, nobody can send descriptors before the
 * connection was accepted (Linux 6.16), so that those of that user can be
 * refused without more to close.
 */
void listener_update(struct broker *broker);
