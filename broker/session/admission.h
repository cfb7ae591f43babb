/*
 * Admission: a connection whose process is known (hello.h) gets a new session,
 * or the one that it had.
 */
#pragma once
#include "broker/session/hello.h"

struct session;

/* What the reply to the hello carries, with fds that stay the session's. */
struct admission {
	struct session *session;
	struct hello_reply reply;
	int fds[3];
	uint16_t n_fds;
};

/* For a hello that is HELLO_VERIFIED; takes its pidfd and fds. Negative: the
 * client is refused, and the connection is to be closed. */
int admission_decide(struct hello *hello, struct admission *ret,
		     struct error *err);
