/*
 * Registering a group: every rank requests it, and the first request makes it.
 */
#pragma once
#include <stdint.h>

struct comm;
struct error;
struct group;
struct group_request;

enum group_outcome {
	GROUP_READY = 0,
	/* Call again when the communicator's key was woken. */
	GROUP_WAIT = 1,
};

/*
 * A rank registers a group, or continues waiting for the others. Returns enum
 * group_outcome, and the group. If a request is invalid or differs from that of
 * the others, all ranks are refused, each once, including those that come
 * later: -EINVAL names the difference. -EEXIST: the rank has registered it
 * already.
 */
int group_register(struct comm *comm, uint32_t rank,
		   const struct group_request *request, struct group **ret,
		   struct error *err);

/* After a restart, make the group of this record in a run that goes on; it has
 * no memory yet. The communicator owns the group also if this fails. */
int group_revive(struct comm *comm, uint32_t record, struct error *err);
