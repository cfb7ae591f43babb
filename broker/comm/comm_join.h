/*
 * Joining a communicator: checks of access, the assignment of ranks, and the
 * wait for all ranks.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct comm;
struct comms;
struct comm_join_request;
struct error;
struct session;

enum comm_join_outcome {
	COMM_JOIN_DONE = 0,
	/* The caller waits for other ranks, and calls again when the key was
	 * woken. */
	COMM_JOIN_WAIT = 1,
};

/*
 * Join by request `number`, or continue waiting for the others. Returns an enum
 * comm_join_outcome or a negative errno. `*ret` is the communicator to wait
 * for: the one that forms, or an earlier one of that name that is not over.
 * `is_late` says that the time of the request has expired. Then it no longer
 * waits for the end of an earlier run; for the other ranks it waits until the
 * time of the run expires. If the session joins as the same rank again, since
 * its client has given the request up, the later request gets the reply.
 */
int comm_join(struct comms *comms, struct session *session,
	      const struct comm_join_request *request, uint64_t number,
	      bool is_late, struct comm **ret, struct error *err);
