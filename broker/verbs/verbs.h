/*
 * Verbs: one function for each kind of request, in one file for each family.
 *
 * A verb checks everything, then changes the catalog, then fills in the reply;
 * it cannot fail after its first change. verb_dispatch() replays the recorded
 * reply of a repeated number, commits the journal together with the new
 * recorded reply, and only then sends the reply.
 */
#pragma once
#include "proto/message.h"
#include <stdint.h>

struct broker;
struct donation;
struct error;
struct peer;
struct session;
struct frame;

enum verb_outcome {
	VERB_DONE = 0,
	VERB_PARK_NAME = 1, /* call->wait_name is its key */
	VERB_PARK_ROOM = 2,
};

#define VERB_MAX_FDS 32

/* One run of one request. */
struct verb_call {
	struct broker *broker;
	struct session *session;
	const struct request *request;
	uint64_t number; /* of the request */
	/* the verb fills it in; strings in `scratch` are borrowed */
	struct reply *reply;
	int fds[VERB_MAX_FDS]; /* sent with the reply; borrowed */
	uint16_t n_fds;
	bool is_one_way; /* only a refusal gets a reply */
	int owned_fd;    /* closed when it was sent; -1: none */
	/* borrowed; came with the request; may be NULL */
	struct donation *donation;
	/* The key for VERB_PARK_NAME; borrowed from the request, or the key of
	 * a communicator (comm.h). */
	const char *wait_name;
	/* the limit of the wait if parked; -1: no limit */
	int32_t wait_ms;
	bool is_rerun; /* it was parked before */
	/* This is the last run: the request must not be parked for a name or
	 * until others release memory, but must fail. */
	bool is_timed_out;
	struct scratch *scratch;
};

/* Returns memory for one call, which is freed when the reply was sent, or NULL
 * if there is none. */
void *verb_scratch(struct verb_call *call, size_t size);

/* Returns an enum verb_outcome, or a negative errno with the sentence in
 * `err`. */
typedef int verb_fn(struct verb_call *call, struct error *err);

#define X(KIND, number, noun, ...) verb_fn verb_##noun;
MESSAGE_VERB_KINDS(X)
#undef X

/* The parts of verb_wait() for WORK_UNSHARD and WORK_REDUCE. */
verb_fn verb_wait_unshard, verb_wait_reduce;

/* Park the call until a thread has finished some work for this user
 * (wake_uid()). Returns VERB_PARK_NAME, or -ENOMEM. */
int verb_park_uid(struct verb_call *call, uint32_t uid, struct error *err);

/*
 * Decode a request of a peer with a session, run it, and reply or park it.
 * Takes descriptors that the request uses out of the frame. Returns 0 if a
 * reply was sent, REQUEST_PARKED, or a negative errno if the peer broke the
 * protocol and its connection must be closed.
 */
int verb_dispatch(struct broker *broker, struct peer *peer, struct frame *frame,
		  struct error *err);

/* Run a parked request again. Returns true if a reply was sent or the session
 * is gone, and the caller then frees the waiter. */
struct waiter;
bool verb_rerun(struct broker *broker, struct waiter *waiter);
