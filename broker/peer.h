/*
 * Peers: one connection each, from accept to close.
 *
 * A peer reads frames, hands requests to verb_dispatch(), and writes replies;
 * what the socket does not take at once waits in a bounded queue, and while it
 * waits no further request of this peer is read. Replies with fds wait until
 * the one before was read (SIOCOUTQ), since unread fds count against the
 * broker. A frame that breaks the protocol costs the connection, never the
 * session's holds.
 *
 * Who is it: SO_PEERPIDFD gives the pidfd. Without it (Linux before 6.5) the
 * pid of SO_PEERCRED is opened and then proved by a nonce that the peer must
 * send back with SCM_CREDENTIALS: the process that answered was alive after
 * the pidfd was opened, so the pidfd is its.
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
	struct session *session; /* NULL until the hello is through */
	int sock_fd;             /* owned */
	uv_poll_t poll;
	pid_t pid;
	uid_t uid;
	gid_t gid;
	struct account *account;
	int pidfd; /* owned until the session has it; -1 */
	bool is_challenged;
	uint64_t nonce;
	struct hello_request hello; /* what waits for the proof, */
	int hello_fds[2];           /* owned; -1 */
	struct queued_reply *first_queued, *last_queued;
	uint32_t retry_position; /* deadline that looks whether fds were read */
	uint32_t retry_ms;
	int events; /* what `poll` looks for now */
	bool is_closing;
	struct peer *next, *prev; /* broker.peers */
};

/* Take over an accepted socket (consumed, also on failure). */
int peer_new(struct broker *broker, int sock_fd, struct error *err);

/* Its session has all the grants that it was told of: read it again. */
void peer_on_granted(struct peer *peer);

/* Close the connection; a session stays. Idempotent. */
void peer_close(struct peer *peer);

/*
 * Send a reply, or queue it. `fds` are borrowed (duplicated if queued). On a
 * closed peer it does nothing. `body` is borrowed.
 */
void peer_reply(struct peer *peer, uint16_t kind, uint64_t number, int32_t code,
		const uint8_t *body, size_t size, const int *fds,
		uint16_t n_fds);

/* The session of this connection has ended: answer the goodbye. */
void peer_end_goodbye(struct peer *peer, uint64_t number);

/* The closer has room again: read those that were not read meanwhile. */
void peers_on_closed(struct broker *broker);

/* Has the client read everything that was sent to it? */
bool peer_has_read_all(const struct peer *peer);
