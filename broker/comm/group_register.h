/*
 * Registering a group: the first request makes it, and every rank requests it.
 */
#pragma once
#include <stdint.h>

struct comm;
struct error;
struct group;
struct group_request;

enum group_outcome {
	GROUP_READY = 0,
	/* The caller calls again when the communicator's key was woken. */
	GROUP_WAIT = 1,
};

/*
 * Register a group for a rank, or continue waiting for the others. Returns an
 * enum group_outcome, and the group in `*ret`. If a request is invalid or
 * differs from that of the others, all ranks are refused, each once, including
 * those that come later; the error is -EINVAL and names the difference. Returns
 * -EEXIST if the rank has registered it already.
 */
int group_register(struct comm *comm, uint32_t rank,
		   const struct group_request *request, struct group **ret,
		   struct error *err);

/* Make the group of this record after a restart, in a run that is continued. It
 * has no memory yet. The communicator owns the group also if this fails. */
int group_revive(struct comm *comm, uint32_t record, struct error *err);
