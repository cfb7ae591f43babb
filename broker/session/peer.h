/*
 * Peers: one for each connection, from accept to close.
 *
 * A peer says when a frame can be read (receiver.h), and writes replies.
 * Replies that the socket does not take at once wait in a bounded queue
 * (reply_queue.h), and while they wait no further request of this peer is read.
 */
#pragma once
#include "broker/session/hello.h"
#include "broker/session/reply_queue.h"
#include "broker/tensor/access.h"
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <uv.h>

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83 /* Linux 6.16 */
#endif

struct sessions;
struct error;
struct peer;
struct session;

typedef void peer_fn(struct peer *peer);

struct peer {
	struct sessions *sessions;
	struct session *session; /* NULL until the hello is complete */
	int sock_fd;             /* owned */
	uv_poll_t poll;
	struct ucred cred; /* of the process that connected */
	struct hello hello;
	peer_fn *on_readable; /* reads a frame, and may close the peer */
	struct reply_queue replies;
	int events; /* what `poll` watches for now */
	/* Not read until descriptors of the user are closed, or until other
	 * users have had their turn: in the list of the account. */
	bool is_paused;
	struct peer *next_paused, *prev_paused;
	/* Its client may send descriptors now; or could once, so that some may
	 * wait in the socket. */
	bool takes_fds, took_fds;
	bool is_closing;
	struct peer *next, *prev; /* sessions.peers */
};

/* Take over an accepted socket (consumed, also on failure). */
int peer_new(struct sessions *sessions, int sock_fd, peer_fn *on_readable,
	     struct error *err);

/* The session has all grants that its lease promised: read the
 * connection again. */
void peer_on_granted(struct peer *peer);

/* The lease of its session still has grants to make, see lease.h. That takes a
 * few rounds of the loop, in which requests stay in the socket. */
bool peer_is_being_granted(const struct peer *peer);

/* The session has this connection from now on, whose process was verified, or
 * with NULL none. Its groups are those of the peer's socket. */
void peer_attach(struct session *session, struct peer *peer);

/* The supplementary groups of the process that connected; returns their
 * number. */
uint32_t peer_read_groups(int sock_fd, gid_t ret[CREDENTIALS_MAX_GROUPS]);

/* Close the connection; the session stays. Idempotent. */
void peer_close(struct peer *peer);

/* Close it because of its behaviour, which is logged. */
void peer_drop(struct peer *peer, const struct error *cause);

/*
 * Send a reply, or queue it. `body` and `fds` are borrowed (`fds` are
 * duplicated, and `body` is copied, if the reply is queued). No effect on a
 * closed peer.
 */
void peer_reply(struct peer *peer, uint16_t kind, uint64_t number, int32_t code,
		const uint8_t *body, size_t size, const int *fds,
		uint16_t n_fds);

void peer_reply_error(struct peer *peer, uint16_t kind, uint64_t number,
		      const struct error *cause);

/* The session of this connection has ended: reply to the goodbye. */
void peer_end_goodbye(struct peer *peer, uint64_t number);

/* The closer may have capacity again: resume reading the connections of this
 * user that wait for it. */
void peers_resume(struct sessions *sessions, uint32_t uid);

/* The next iteration begins: resume reading the connections of users who had
 * their share of this one. A handler of deferred work. */
bool peers_on_idle(struct sessions *sessions);
