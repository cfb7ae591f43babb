/*
 * What a client can ask for: one function per kind of request, one file per
 * family in verbs/.
 *
 * A verb checks everything, then changes things, then fills the reply; it
 * cannot fail after its first change. Around it verb_dispatch() replays the
 * outcome of a repeated number, commits the journal together with the recorded
 * outcome, and only then lets the reply go.
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
	VERB_PARK_NAME = 1, /* call->wait_name says which */
	VERB_PARK_ROOM = 2,
};

#define VERB_MAX_FDS 32

/* One run of one request. */
struct verb_call {
	struct broker *broker;
	struct session *session;
	const struct request *request;
	struct reply *reply;   /* to fill; borrowed strings live in `scratch` */
	int fds[VERB_MAX_FDS]; /* to send along; borrowed */
	uint16_t n_fds;
	bool is_one_way;           /* only a refusal is answered */
	int owned_fd;              /* closed after sending; -1 */
	struct donation *donation; /* borrowed: what came along; NULL */
	const char *wait_name; /* VERB_PARK_NAME; borrowed from the request, or
				  the key of a communicator (comm.h) */
	int32_t wait_ms;       /* parked: how long at most; -1: for ever */
	bool is_rerun;         /* it was parked */
	bool is_timed_out;     /* last run: do not park for a name or for others
				  to release; fail */
	struct scratch *scratch;
};

/* Memory for one call, freed after the reply was sent; NULL: no heap. */
void *verb_scratch(struct verb_call *call, size_t size);

/* 0 / positive: enum verb_outcome; negative: refused, `err` has the sentence.
 */
typedef int verb_fn(struct verb_call *call, struct error *err);

#define X(KIND, number, noun, ...) verb_fn verb_##noun;
MESSAGE_VERB_KINDS(X)
#undef X

/* Parts of verb_wait, for WORK_UNSHARD and WORK_REDUCE. */
verb_fn verb_wait_unshard, verb_wait_reduce;

/* VERB_PARK_NAME until a thread has done something for this user: see
 * wake_uid(). */
int verb_park_uid(struct verb_call *call, uint32_t uid, struct error *err);

/*
 * A request frame of a peer with a session: decode, run, reply or park. Takes
 * what the request came with out of the frame. 0: it was answered;
 * REQUEST_PARKED; negative: the peer broke the protocol (close it).
 */
int verb_dispatch(struct broker *broker, struct peer *peer, struct frame *frame,
		  struct error *err);

/* Run a parked request again. True: it was answered (or its session is gone)
 * and the waiter is to be freed. */
struct waiter;
bool verb_rerun(struct broker *broker, struct waiter *waiter);
