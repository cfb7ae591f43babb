/*
 * The steps that all requests have in common:
 *
 *   run the verb -> encode the reply -> record it -> commit -> send
 *
 * A broker that is killed before the commit has done nothing. If it is killed
 * after the commit, the next broker replies to the repeated request from the
 * record. Only requests that change something are recorded, and only when they
 * succeed; other requests are run again.
 */
#include "broker/broker.h"
#include "broker/comm/comm_progress.h"
#include "broker/memory/donation.h"
#include "broker/session/peer.h"
#include "broker/session/recorded_reply.h"
#include "broker/session/session.h"
#include "broker/session/waiter.h"
#include "broker/verbs/places.h"
#include "broker/verbs/replay.h"
#include "broker/verbs/reply.h"
#include "broker/verbs/scratch.h"
#include "broker/verbs/verbs.h"
#include "proto/error.h"
#include "proto/failpoint.h"
#include "proto/frame.h"
#include <errno.h>
#include <unistd.h>

_Static_assert(VERB_MAX_FDS <= FRAME_MAX_FDS, "a reply is one frame");

struct verb {
	verb_fn *run; /* NULL: there is no such request */
	const char *done_point, *committed_point;
};

static const struct verb verbs[MESSAGE_MAX + 1] = {
#define X(KIND, number, noun, ...)                                             \
	[number] = {verb_##noun, "verb." #noun ".done",                        \
		    "verb." #noun ".committed"},
	MESSAGE_VERB_KINDS(X)
#undef X
};

static void call_init(struct verb_call *call, struct broker *broker,
		      struct session *session, const struct request *request,
		      struct reply *reply, struct scratch *scratch)
{
	*call = (struct verb_call){
		.broker = broker,
		.session = session,
		.request = request,
		.reply = reply,
		.owned_fd = -1,
		.scratch = scratch,
	};
	*reply = (struct reply){.kind = request->kind};
	scratch->pieces = NULL;
}

static void call_deinit(struct verb_call *call)
{
	if (call->owned_fd >= 0)
		close(call->owned_fd);
	scratch_deinit(call->scratch);
}

/* Finish a verb that is done: record its reply, commit, and only then send the
 * reply. */
static void finish(struct verb_call *call,
		   const struct recorded_reply_room *room)
{
	const struct verb *verb = &verbs[call->request->kind];
	struct peer *peer = call->session->peer;
	struct body body;

	body_encode(call, &body);
	if (message_is_recorded(call->request->kind))
		body_record(call, room, &body);
	failpoint(verb->done_point);
	catalog_commit(&call->broker->store.catalog);
	failpoint(verb->committed_point);
	/* Peers that sleep, and the worker, are served before this peer, which
	 * is awake. This must not happen while fds are borrowed, because a
	 * rerun may retire their chunks. */
	if (call->n_fds == 0) {
		if (call->broker->comms.progress.is_wanted)
			(void)comms_on_idle(&call->broker->comms);
		waiters_run_ready(&call->broker->sessions);
	}
	body_send(call, peer, &body);
}

/* --- running ------------------------------------------------------------- */

/*
 * Run a request and reply, or send the recorded reply again. If the request
 * must be parked, a positive outcome is returned; then nothing has changed
 * except for the memory that the request tried to make.
 */
static int attempt(struct verb_call *call)
{
	const struct verb *verb = &verbs[call->request->kind];
	struct recorded_reply_room room = RECORDED_REPLY_ROOM_NULL;
	struct session *session = call->session;
	const struct recorded_reply *recorded_reply =
		recorded_reply_find(session, call->number);
	struct error err = ERROR_NULL;
	int r = 0;

	if (recorded_reply)
		return verb_replay(call, recorded_reply);
	if (message_is_recorded(call->request->kind))
		r = recorded_reply_reserve(session, call->request, &room, &err);
	if (r == 0)
		r = verb->run(call, &err);
	if (r == VERB_DONE) {
		finish(call, &room);
		return VERB_DONE;
	}
	recorded_reply_unreserve(session, &room);
	verb_detach_chunks(call);
	catalog_commit(&call->broker->store.catalog);
	if (r > 0)
		return r;
	verb_refuse(session->peer, call->request->kind, call->number, &err);
	return VERB_DONE;
}

/* Take the memory that came with the request. A request that was executed
 * before has its memory already. */
static int take_donation(struct verb_call *call, struct frame *frame,
			 struct error *err)
{
	int fd;

	if (frame->n_fds == 0 ||
	    recorded_reply_find(call->session, frame->number))
		return 0;
	fd = frame->fds[0];
	frame->fds[0] = -1;
	return donation_new(&call->broker->store.pools,
			    session_record(call->session)->uid, fd,
			    &call->donation, err);
}

/* Returns 0 if a reply was sent, otherwise REQUEST_PARKED. */
static int run(struct broker *broker, struct session *session,
	       struct request *request, struct frame *frame)
{
	uint64_t number = frame->number;
	struct peer *peer = session->peer;
	uint16_t kind = request->kind;
	struct error err = ERROR_NULL;
	struct scratch scratch;
	struct verb_call call;
	struct reply reply;
	int r;

	call_init(&call, broker, session, request, &reply, &scratch);
	call.number = number;
	call.is_one_way = frame->is_one_way;
	r = take_donation(&call, frame, &err);
	if (r < 0) {
		verb_refuse(peer, kind, number, &err);
		r = VERB_DONE;
	} else {
		r = attempt(&call);
	}
	if (r == VERB_DONE) {
		request_deinit(request);
		donation_drop(call.donation);
		goto out;
	}
	r = waiter_park(session, request, call.donation, number,
			r == VERB_PARK_NAME ? call.wait_name : NULL,
			call.wait_ms, &err);
	if (r < 0)
		verb_refuse(peer, kind, number, &err);
	else
		r = REQUEST_PARKED;
out:
	call_deinit(&call);
	return r == REQUEST_PARKED ? REQUEST_PARKED : 0;
}

bool verb_rerun(struct broker *broker, struct waiter *waiter)
{
	struct session *session = waiter->session;
	struct error err = ERROR_NULL;
	struct scratch scratch;
	struct verb_call call;
	struct reply reply;
	int r;

	call_init(&call, broker, session, &waiter->request, &reply, &scratch);
	call.number = waiter->number;
	call.is_rerun = true;
	call.is_timed_out = waiter->is_timed_out;
	call.donation = waiter->donation;
	r = attempt(&call);
	if (r == VERB_DONE)
		goto out;
	r = waiter_repark(waiter, r == VERB_PARK_NAME ? call.wait_name : NULL,
			  &err);
	if (r < 0)
		verb_refuse(session->peer, waiter->request.kind, waiter->number,
			    &err);
	else
		r = 1;
out:
	call_deinit(&call);
	return r <= 0;
}

/* --- entry --------------------------------------------------------------- */

static int check_number(const struct session *session,
			const struct frame *frame, struct error *err)
{
	uint64_t answered = session_record(session)->answered;

	if (frame->number == 0 || frame->answered > frame->number)
		return error_set(err, -EPROTO,
				 "request %llu cannot confirm the replies to "
				 "all requests below %llu",
				 (unsigned long long)frame->number,
				 (unsigned long long)frame->answered);
	if (frame->number < answered)
		return error_set(err, -EPROTO,
				 "the reply to request %llu has arrived, as "
				 "the client confirmed",
				 (unsigned long long)frame->number);
	if (waiter_has_number(session, frame->number))
		return error_set(err, -EPROTO,
				 "request %llu came twice on one connection",
				 (unsigned long long)frame->number);
	return 0;
}

int verb_dispatch(struct broker *broker, struct peer *peer, struct frame *frame,
		  struct error *err)
{
	struct session *session = peer->session;
	struct error cause = ERROR_NULL;
	struct request request;
	int r;

	r = check_number(session, frame, err);
	if (r < 0)
		return r;
	peer->sessions->n_requests++;
	session->n_requests++;
	recorded_reply_on_request(session, frame);
	catalog_commit(&peer->sessions->store->catalog);
	if (frame->kind > MESSAGE_MAX || !verbs[frame->kind].run) {
		error_set(&cause, -ENOSYS,
			  "this broker (version %s, protocol %d.%d) does not "
			  "support requests of kind %u",
			  FSDP_VERSION, PROTOCOL_MAJOR, PROTOCOL_MINOR,
			  frame->kind);
		verb_refuse(peer, frame->kind, frame->number, &cause);
		return 0;
	}
	r = request_decode(frame->kind, frame->body, frame->body_size, &request,
			   &cause);
	/* -EPROTO would mean that the connection is closed. */
	if (r == -EPROTO)
		cause.code = -EBADMSG;
	if (r < 0) {
		verb_refuse(peer, frame->kind, frame->number, &cause);
		return 0;
	}
	return run(broker, session, &request, frame);
}
