/*
 * Peers: one for each connection, from its acceptance to its end.
 *
 * A peer watches for frames (receiver.h reads them), and writes replies.
 * Replies that the socket does not take at once wait in a bounded queue
 * (reply_queue.h), and while they wait, no further request of this peer is
 * read.
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
	int events; /* the events that `poll` watches for now */
	struct peer_list *paused_in; /* a list of the account; NULL: none */
	struct peer *next_paused, *prev_paused;
	/* Whether the client may send descriptors now, and whether it once
	 * could, so that the socket may contain some. */
	bool takes_fds, took_fds;
	bool is_closing;
	struct peer *next, *prev; /* sessions.peers */
};

/* Take over an accepted socket (consumed, also on failure). */
int peer_new(struct sessions *sessions, int sock_fd, peer_fn *on_readable,
	     struct error *err);

/* Read the connection again: the session has all grants that its lease
 * promised. */
void peer_on_granted(struct peer *peer);

/* Returns whether the lease of the session still has grants to make (lease.h).
 * That takes a few rounds of the loop, in which requests stay in the socket. */
bool peer_is_being_granted(const struct peer *peer);

/* Make this the connection of the session; NULL: it has no connection. The
 * process of the peer was verified. The session's groups become those of the
 * peer's socket. */
void peer_attach(struct session *session, struct peer *peer);

/* Read the supplementary groups of the process that connected. Returns their
 * number, 0 on failure. */
uint32_t peer_read_groups(int sock_fd, gid_t ret[CREDENTIALS_MAX_GROUPS]);

/* Close the connection; the session stays. Idempotent. */
void peer_close(struct peer *peer);

/* Close the connection because of its behaviour, which is logged. */
void peer_drop(struct peer *peer, const struct error *cause);

/*
 * Send a reply, or queue it. `body` and `fds` are borrowed; if the reply is
 * queued, `body` is copied and `fds` are duplicated. There is no effect on a
 * closed peer.
 */
void peer_reply(struct peer *peer, uint16_t kind, uint64_t number, int32_t code,
		const uint8_t *body, size_t size, const int *fds,
		uint16_t n_fds);

/* Send a refusal: the code and the sentence of `cause`. */
void peer_reply_error(struct peer *peer, uint16_t kind, uint64_t number,
		      const struct error *cause);

/* Reply to the goodbye, since the session of this connection has ended. */
void peer_end_goodbye(struct peer *peer, uint64_t number);

/* Resume reading the connections of this user that wait for the closer, which
 * may have capacity again. */
void peers_resume(struct sessions *sessions, uint32_t uid);

/* Resume reading the connections of users who had used their share of the last
 * iteration. This is a handler of deferred work; it returns false. */
bool peers_on_idle(struct sessions *sessions);
