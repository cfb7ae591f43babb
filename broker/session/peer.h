/*
 * Peers: one for each connection, from accept to close.
 *
 * A peer reads frames, hands requests to the verbs (session_hooks.on_request),
 * and writes replies. Replies that the socket does not take at once wait in a
 * bounded queue (reply_queue.h), and while they wait no further request of this
 * peer is read. The first frames are the hello (hello.h), which gives the peer
 * its session. A frame that violates the protocol closes the connection, but
 * the session keeps its holds.
 */
#pragma once
#include "broker/session/hello.h"
#include "broker/session/reply_queue.h"
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <uv.h>

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83 /* Linux 6.16 */
#endif

struct sessions;
struct error;
struct session;

struct peer {
	struct sessions *sessions;
	struct session *session; /* NULL until the hello is complete */
	int sock_fd;             /* owned */
	uv_poll_t poll;
	struct ucred cred; /* of the process that connected */
	struct hello hello;
	struct reply_queue replies;
	int events; /* what `poll` watches for now */
	bool is_closing;
	struct peer *next, *prev; /* sessions.peers */
};

/* Take over an accepted socket (consumed, also on failure). */
int peer_new(struct sessions *sessions, int sock_fd, struct error *err);

/* The session has all grants that its lease promised: read the
 * connection again. */
void peer_on_granted(struct peer *peer);

/* Close the connection; the session stays. Idempotent. */
void peer_close(struct peer *peer);

/*
 * Send a reply, or queue it. `body` and `fds` are borrowed (`fds` are
 * duplicated, and `body` is copied, if the reply is queued). No effect on a
 * closed peer.
 */
void peer_reply(struct peer *peer, uint16_t kind, uint64_t number, int32_t code,
		const uint8_t *body, size_t size, const int *fds,
		uint16_t n_fds);

/* The session of this connection has ended: reply to the goodbye. */
void peer_end_goodbye(struct peer *peer, uint64_t number);

/* The closer has capacity again: resume reading the connections that
 * it paused. */
void peers_on_closed(struct sessions *sessions);

/* Has the client read everything that was sent to it? */
bool peer_has_read_all(const struct peer *peer);
