/*
 * One frame is read per readiness event. In this way epoll serves the peers in
 * turn, and the request of a peer that sleeps until it has the reply does not
 * cost a second recvmsg(), which would find the socket empty. Only after a
 * one-way request the next frame is read at once, up to a limit, because its
 * sender did not sleep and has probably sent more.
 */
#include "broker/session/receiver.h"
#include "broker/session/admission.h"
#include "broker/session/peer.h"
#include "broker/session/session.h"
#include "broker/session/sessions.h"
#include "proto/error.h"
#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>

/* The number of frames that are read per readiness event; all but the last are
 * one-way requests. */
#define MAX_AT_ONCE 4

/* --- hello --------------------------------------------------------------- */

static void reply_hello(struct peer *peer, uint64_t number,
			const struct admission *admission)
{
	struct reply reply = {.kind = MESSAGE_HELLO, .hello = admission->reply};
	struct error err = ERROR_NULL;
	uint8_t *body;
	size_t size;

	if (reply_encode(&reply, &body, &size, &err) < 0) {
		peer_drop(peer, &err);
		return;
	}
	peer_reply(peer, MESSAGE_HELLO, number, 0, body, size, admission->fds,
		   admission->n_fds);
	free(body);
}

/* Attach the session to this peer. The connection that it had before is
 * closed. */
static void take_session(struct peer *peer, struct session *session)
{
	const int off = 0;

	if (session->peer)
		peer_close(session->peer);
	peer_attach(session, peer);
	/* The senders of later frames are not checked, so the kernel need not
	 * report them any more. */
	(void)setsockopt(peer->sock_fd, SOL_SOCKET, SO_PASSCRED, &off,
			 sizeof(off));
}

static void challenge(struct peer *peer, uint64_t number)
{
	const struct admission none = {
		.reply = {.is_challenge = true, .nonce = peer->hello.nonce},
	};

	reply_hello(peer, number, &none);
}

static int handle_hello(struct peer *peer, struct frame *frame,
			const struct frame_sender *sender, struct error *err)
{
	struct admission admission;
	int r;

	r = hello_on_frame(&peer->hello, frame, sender, err);
	if (r == HELLO_CHALLENGED) {
		challenge(peer, frame->number);
		return 0;
	}
	if (r == HELLO_VERIFIED)
		r = admission_decide(&peer->hello, &admission, err);
	if (r < 0)
		return r;
	take_session(peer, admission.session);
	reply_hello(peer, frame->number, &admission);
	/* Nobody knows a new session whose reply could not be sent. A client
	 * that gave up has said goodbye, but what it sent is not read any
	 * more. */
	if (peer->is_closing && !peer->hello.request.is_reconnect)
		session_end(admission.session, 0);
	return 0;
}

/* --- requests ------------------------------------------------------------ */

static int handle_request(struct peer *peer, struct frame *frame,
			  struct error *err)
{
	const struct session_hooks *hooks = &peer->sessions->hooks;
	bool is_known = frame->kind > 0 && frame->kind <= MESSAGE_MAX;

	/* Only a request that shares memory may come with a descriptor. */
	if (frame->n_fds > message_takes_fd(frame->kind) && is_known)
		return error_set(err, -EPROTO,
				 "a request of kind %s has %u descriptors, "
				 "which it may not have",
				 message_kind_name(frame->kind), frame->n_fds);
	if (frame->kind == MESSAGE_HELLO || frame->kind == MESSAGE_CHALLENGE)
		return error_set(err, -EPROTO,
				 "the connection has a session already");
	if (peer->session->is_ending)
		return error_set(err, -EPROTO,
				 "a request of kind %s came after the goodbye",
				 message_kind_name(frame->kind));
	if (frame->kind != MESSAGE_GOODBYE)
		return hooks->on_request(hooks->data, peer, frame, err);
	session_end(peer->session, frame->number);
	return 0;
}

/* Close a connection that broke the protocol, or whose hello was refused. */
static void refuse(struct peer *peer, const struct frame *frame, int code,
		   const struct error *cause)
{
	/* A client that reconnects while descriptors are few must not give its
	 * session up. If it gets no reply, it connects again. */
	if ((code != -EMFILE && code != -ENFILE) || peer->session)
		peer_reply_error(peer, frame->kind, frame->number, cause);
	peer_drop(peer, cause);
}

static void handle_frame(struct peer *peer, struct frame *frame,
			 const struct frame_sender *sender)
{
	struct meter *meter = &peer->sessions->base->loop.meter;
	struct error err = ERROR_NULL;
	int r;

	if (peer->session)
		r = handle_request(peer, frame, &err);
	else
		r = handle_hello(peer, frame, sender, &err);
	closer_put_frame(&peer->sessions->base->closer, peer->cred.uid, frame);
	if (r < 0)
		refuse(peer, frame, r, &err);
	if (r == REQUEST_PARKED)
		(void)meter_end(meter, METER_REQUESTS);
	else
		meter_request(meter, frame->kind);
}

/* Returns true if another frame may have been sent together with this one. */
static bool read_frame(struct peer *peer)
{
	struct closer *closer = &peer->sessions->base->closer;
	struct meter *meter = &peer->sessions->base->loop.meter;
	struct frame_refused refused;
	struct frame_sender sender;
	struct error err = ERROR_NULL;
	struct frame frame;
	int r;

	r = frame_take(peer->sock_fd, peer->sessions->receive_buffer, &frame,
		       &refused, &sender, &err);
	while (refused.n > 0)
		closer_put(closer, peer->cred.uid, refused.fds[--refused.n]);
	if (r == FRAME_AGAIN)
		return false;
	if (r == FRAME_EOF) {
		peer_close(peer);
		(void)meter_end(meter, METER_CLOSES);
		return false;
	}
	if (r < 0) {
		refuse(peer, &(struct frame){.kind = 0}, r, &err);
		meter_request(meter, 0);
		return false;
	}
	handle_frame(peer, &frame, &sender);
	return frame.is_one_way && !peer->is_closing &&
	       reply_queue_is_empty(&peer->replies);
}

void receiver_read(struct peer *peer)
{
	int n = 0;

	while (read_frame(peer) && ++n < MAX_AT_ONCE &&
	       !peer_is_being_granted(peer))
		;
}
