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

struct broker;
struct error;
struct session;
struct queued_reply; /* peer.c */

struct peer {
	struct broker *broker;
	struct session *session; /* NULL until the hello is through */
	int sock_fd;		 /* owned */
	uv_poll_t poll;
	pid_t pid;
	uid_t uid;
	gid_t gid;
	int pidfd; /* owned until the session has it; -1 */
	bool is_challenged;
	uint64_t nonce;
	uint64_t challenge_number; /* of the hello that waits for its proof */
	uint64_t budget;
	struct queued_reply *first_queued, *last_queued;
	uint64_t queued_bytes;
	uint32_t retry_position; /* deadline that looks whether fds were read */
	bool is_closing;
	struct peer *next, *prev; /* broker.peers */
};

/* Take over an accepted socket (consumed, also on failure). */
int peer_new(struct broker *broker, int sock_fd, struct error *err);

/* Close the connection; a session stays. Idempotent. */
void peer_close(struct peer *peer);

/*
 * Send a reply, or queue it. `fds` are borrowed (duplicated if queued). On a
 * closed peer it does nothing. `body` is borrowed.
 */
void peer_reply(struct peer *peer, uint16_t kind, uint64_t number, int32_t code,
		const uint8_t *body, size_t size, const int *fds,
		uint16_t n_fds);

/* Listen on `path` (or take `listen_fd`, consumed, if >= 0); accepts peers. */
struct listener {
	uv_poll_t poll;
	int fd;	     /* owned */
	char *path;  /* ours to unlink; NULL */
	bool is_open;
};
int listener_open(struct broker *broker, const char *path, int listen_fd,
		  struct error *err);
/* Bind and listen only; for the parent of --supervised. */
int listener_bind(const char *path, int *ret_fd, struct error *err);
void listener_close(struct listener *listener);
