/*
 * From a path to a session: connect, say hello, prove who we are if asked.
 *
 * Used for the first connection and again for each reconnect, when the client
 * brings its session's number, secret, ref-counter file and doorbell.
 */
#pragma once
#include "client/interrupt.h"
#include "proto/message.h"
#include <stdbool.h>
#include <stdint.h>

struct error;

/* What we say of ourselves. */
struct introduction {
	char *path; /* owned by whoever holds the struct */
	uint64_t budget;
	bool is_reconnect; /* then all of these: */
	uint64_t session;
	uint8_t token[TOKEN_SIZE];
	int refs_fd, doorbell_fd; /* borrowed */
	struct interrupt interrupt;
};

#define WELCOME_MAX_FDS 3

/* What the broker answered. */
struct welcome {
	int sock_fd; /* owned by the caller from then on, like the fds */
	struct hello_reply hello;
	int fds[WELCOME_MAX_FDS]; /* a new session: table, refs, doorbell */
};

enum handshake_outcome {
	HANDSHAKE_OK = 0,
	HANDSHAKE_AGAIN = 1, /* nobody there, or gone half-way; `err` says */
};

/* One try, until `deadline_ms` (CLOCK_MONOTONIC) at most. Negative: refused;
 * trying again will not help. */
int handshake_try(const struct introduction *self, int64_t deadline_ms,
		  struct welcome *ret, struct error *err);

/* The monotonic clock in milliseconds. */
int64_t handshake_now_ms(void);
