/*
 * The failpoints of a client's requests (proto/failpoint.h): after a request
 * was sent, and after its reply was received. The handshake does not pass any
 * of them.
 */
#pragma once
#include "proto/message.h"

static const struct {
	const char *sent, *received;
} call_failpoints[MESSAGE_MAX + 1] = {
#define X(KIND, number, noun, ...)                                             \
	[number] = {"client." #noun ".sent", "client." #noun ".received"},
	MESSAGE_KINDS(X)
#undef X
};
