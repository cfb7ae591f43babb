/*
 * Where a test can kill a client (proto/point.h): when a request has left, and
 * when its answer is there. Those of the handshake are not among them.
 */
#pragma once
#include "proto/message.h"

static const struct {
	const char *sent, *received;
} call_points[MESSAGE_MAX + 1] = {
#define POINT(kind, name)                                                      \
	[MESSAGE_##kind] = {"client." name ".sent", "client." name ".receive"  \
						    "d"}
	POINT(GOODBYE, "goodbye"),
	POINT(PING, "ping"),
	POINT(ALLOC, "alloc"),
	POINT(PUBLISH, "publish"),
	POINT(GET, "get"),
	POINT(RELEASE, "release"),
	POINT(REMOVE, "remove"),
	POINT(TICKET, "ticket"),
	POINT(REDEEM, "redeem"),
	POINT(BUNDLE_BEGIN, "bundle_begin"),
	POINT(BUNDLE_COMMIT, "bundle_commit"),
	POINT(BUNDLE_ABORT, "bundle_abort"),
	POINT(BUNDLE_GET, "bundle_get"),
	POINT(CHUNK, "chunk"),
	POINT(LIST, "list"),
	POINT(WHO, "who"),
	POINT(CLIENTS, "clients"),
	POINT(STATUS, "status"),
	POINT(COMM_JOIN, "comm_join"),
	POINT(COMM_LEAVE, "comm_leave"),
	POINT(COMM_REMOVE, "comm_remove"),
	POINT(GROUP, "group"),
	POINT(UNSHARD, "unshard"),
	POINT(RESHARD, "reshard"),
	POINT(INPUT, "input"),
	POINT(REDUCE, "reduce"),
	POINT(COMMIT, "commit"),
	POINT(WAIT, "wait"),
	POINT(COMMS, "comms"),
	POINT(GROUPS, "groups"),
	POINT(GROUP_PLAN, "group_plan"),
	POINT(TIMELINES, "timelines"),
	POINT(COMM_FAIL, "comm_fail"),
	POINT(SHARE, "share"),
	POINT(UNSHARE, "unshare"),
	POINT(ORDERED, "ordered"),
	POINT(PREFIXES, "prefixes"),
	POINT(TICKETS, "tickets"),
	POINT(REVOKE, "revoke"),
#undef POINT
};
