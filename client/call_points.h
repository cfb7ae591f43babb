/*
 * Where a test can kill a client (proto/point.h): when a request has left, and
 * when its answer is there. The handshake comes to none of its own.
 */
#pragma once
#include "proto/message.h"

static const struct {
	const char *sent, *received;
} call_points[MESSAGE_MAX + 1] = {
#define X(KIND, number, noun, ...)                                             \
	[number] = {"client." #noun ".sent", "client." #noun ".received"},
	MESSAGE_KINDS(X)
#undef X
};
