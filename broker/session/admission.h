/*
 * Admission: a connection whose process is known (hello.h) gets a new session,
 * or the one that it had.
 */
#pragma once
#include "broker/session/hello.h"

struct session;

/* The contents of the reply to a hello. The descriptors are borrowed. */
struct admission {
	struct session *session;
	struct hello_reply reply;
	int fds[3];
	uint16_t n_fds;
};

/* Begin or resume the session that a verified hello (HELLO_VERIFIED) asks for.
 * Takes the hello's pidfd and fds. If the result is negative, the client is
 * refused, and the caller closes the connection. */
int admission_decide(struct hello *hello, struct admission *ret,
		     struct error *err);
