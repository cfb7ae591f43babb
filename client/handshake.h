/*
 * From a path to a session: connects, sends the hello, and replies to the
 * broker's challenge if there is one.
 *
 * This is used for the first connection and for each reconnect. To reconnect,
 * the client sends its session's number, secret, ref-counter file and doorbell.
 */
#pragma once
#include "client/interrupt.h"
#include "proto/message.h"
#include <stdbool.h>
#include <stdint.h>

struct error;

/* What the client sends to identify itself. */
struct identity {
	char *path; /* owned by the holder of the struct */
	uint64_t budget;
	/* if true, the fields from here to doorbell_fd are used */
	bool is_reconnect;
	uint64_t session;
	uint8_t token[TOKEN_SIZE];
	int refs_fd, doorbell_fd; /* borrowed */
	int mark;                 /* of our descriptors: own_fd.h */
	struct interrupt interrupt;
};

#define GREETING_MAX_FDS 3

/* What the broker replied. The caller owns all descriptors. */
struct greeting {
	int sock_fd; /* the new connection */
	struct hello_reply hello;
	uint64_t epoch; /* of the broker */
	/* only for a new session: the files of the state table and the
	 * ref-counters, and the doorbell */
	int fds[GREETING_MAX_FDS];
};

enum handshake_outcome {
	HANDSHAKE_OK = 0,
	HANDSHAKE_AGAIN = 1, /* another try may help; `err` has the cause */
};

/* Return -EBADF: the connection cannot be used any more, because the program
 * has closed descriptors of it. */
int handshake_refuse_closed(struct error *err);

/* Try to connect once, until `deadline_ms` (CLOCK_MONOTONIC) at the latest.
 * Returns an enum handshake_outcome, or a negative errno: the broker refused,
 * and another try will not help. */
int handshake_try(const struct identity *self, int64_t deadline_ms,
		  struct greeting *ret, struct error *err);

/* End a new session before its first request. Without this goodbye it would
 * stay until the process ends. */
void handshake_undo(int sock_fd);
