/*
 * From a path to a session: connect, send the hello, and answer the broker's
 * challenge if there is one.
 *
 * This is used for the first connection and for each reconnect, where the
 * client sends its session's number, secret, ref-counter file and doorbell.
 */
#pragma once
#include "client/interrupt.h"
#include "proto/message.h"
#include <stdbool.h>
#include <stdint.h>

struct error;

/* What the client tells the broker of itself. */
struct identity {
	char *path; /* owned by the holder of the struct */
	uint64_t budget;
	bool is_reconnect; /* then all of these: */
	uint64_t session;
	uint8_t token[TOKEN_SIZE];
	int refs_fd, doorbell_fd; /* borrowed */
	int mark;                 /* own_fd.h */
	struct interrupt interrupt;
};

#define GREETING_MAX_FDS 3

/* What the broker replied. */
struct greeting {
	int sock_fd; /* owned by the caller from then on, like the descriptors
		      */
	struct hello_reply hello;
	int fds[GREETING_MAX_FDS]; /* a new session: table, refs, doorbell */
};

enum handshake_outcome {
	HANDSHAKE_OK = 0,
	HANDSHAKE_AGAIN = 1, /* no broker, or it closed the socket; see `err` */
};

/* The connection cannot be used any more, because the program has closed
 * descriptors of it. -EBADF. */
int handshake_refuse_closed(struct error *err);

/* Try once, until `deadline_ms` (CLOCK_MONOTONIC) at the latest. Negative: the
 * broker refused, and another try will not help. */
int handshake_try(const struct identity *self, int64_t deadline_ms,
		  struct greeting *ret, struct error *err);

/* The caller gives the new session up before its first request. Without a
 * goodbye it would stay until this process ends. */
void handshake_undo(int sock_fd);
