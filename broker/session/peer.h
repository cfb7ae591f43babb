/*
 * Peers: one for each connection, from accept to close.
 *
 * A peer reads frames, hands requests to verb_dispatch(), and writes replies.
 * Replies that the socket does not take at once wait in a bounded queue, and
 * while they wait no further request of this peer is read. A reply with fds
 * waits until the one before was read (SIOCOUTQ), since unread fds count
 * against the broker. A frame that violates the protocol closes the connection,
 * but the session keeps its holds.
 *
 * The peer's identity: SO_PEERPIDFD gives the pidfd. Without it (Linux before
 * 6.5) the pid of SO_PEERCRED is opened and then verified by a nonce that the
 * peer must send back with SCM_CREDENTIALS: the process that replied was alive
 * after the pidfd was opened, so the pidfd refers to it.
 */
#pragma once
#include "proto/frame.h"
#include "proto/message.h"
#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#define OVERFLOW_UID 65534

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83 /* Linux 6.16 */
#endif

struct account;
struct broker;
struct error;
struct session;
struct queued_reply; /* peer.c */

struct peer {
	struct broker *broker;
	struct session *session; /* NULL until the hello is complete */
	int sock_fd;             /* owned */
	uv_poll_t poll;
	pid_t pid;
	uid_t uid;
	gid_t gid;
	struct account *account;
	int pidfd; /* owned until the session takes it; -1 */
	bool is_challenged;
	uint64_t nonce;
	struct hello_request hello; /* the hello while the proof is pending, */
	int hello_fds[2];           /* and its fds, owned; -1 */
	struct queued_reply *first_queued, *last_queued;
	/* Deadline that checks whether fds were read. */
	uint32_t retry_position;
	uint32_t retry_ms;
	int events; /* what `poll` watches for now */
	bool is_closing;
	struct peer *next, *prev; /* broker.peers */
};

/* Take over an accepted socket (consumed, also on failure). */
int peer_new(struct broker *broker, int sock_fd, struct error *err);

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
void peers_on_closed(struct broker *broker);

/* Has the client read everything that was sent to it? */
bool peer_has_read_all(const struct peer *peer);
