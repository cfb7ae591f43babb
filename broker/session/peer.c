/*
 * No frame of a peer is read while replies to it are queued. The queue of a
 * peer that does not read its replies therefore holds at most the replies to
 * its last request and to its parked requests.
 */
#include "broker/session/peer.h"
#include "broker/base/account.h"
#include "broker/base/deadline.h"
#include "broker/session/leftover.h"
#include "broker/session/session.h"
#include "broker/session/sessions.h"
#include "broker/session/waiter.h"
#include "broker/tensor/lease.h"
#include "proto/error.h"
#include "proto/failpoint.h"
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/*
 * The time that each user gets in one iteration of the loop if there are
 * several users. A request that has begun is finished; further requests of the
 * user are read in later iterations, so that other users wait for at most one
 * of them.
 */
#define SHARE_NS 200000

/* The number of paused connections without input that are resumed at once. Each
 * of them takes some microseconds. */
#define RESUMED_AT_ONCE 16

/* The charge of a connection for its socket buffers and records. */
#define PEER_COST 16384

static void on_event(uv_poll_t *poll, int status, int events);

/* --- sending ------------------------------------------------------------- */

bool peer_is_being_granted(const struct peer *peer)
{
	return peer->session && lease_is_open(&peer->session->holdings);
}

/* Let the kernel refuse descriptors that the client sends, if it can (Linux
 * 6.16). Those that are in the socket already stay there. */
static void set_takes_fds(struct peer *peer, bool takes_fds)
{
	const int value = takes_fds;

	if (peer->takes_fds == takes_fds)
		return;
	(void)setsockopt(peer->sock_fd, SOL_SOCKET, SO_PASSRIGHTS, &value,
			 sizeof(value));
	peer->takes_fds = takes_fds;
	peer->took_fds |= takes_fds;
}

/* Returns whether the user has used its share of this iteration. */
static bool is_sated(const struct sessions *sessions,
		     const struct account *account)
{
	return sessions->n_users > 1 &&
	       account->iteration == sessions->base->loop.meter.at_ns &&
	       account->iteration_ns >= SHARE_NS;
}

static void postpone(struct sessions *sessions, struct account *account)
{
	if (account->is_postponed)
		return;
	account->is_postponed = true;
	account->next_postponed = sessions->postponed;
	sessions->postponed = account;
	loop_defer(&sessions->base->loop, &sessions->resuming);
}

static void append(struct peer_list *list, struct peer *peer)
{
	peer->prev_paused = list->last;
	peer->next_paused = NULL;
	if (peer->prev_paused)
		peer->prev_paused->next_paused = peer;
	else
		list->first = peer;
	list->last = peer;
}

static void remove_from(struct peer_list *list, struct peer *peer)
{
	if (peer->prev_paused)
		peer->prev_paused->next_paused = peer->next_paused;
	else
		list->first = peer->next_paused;
	if (peer->next_paused)
		peer->next_paused->prev_paused = peer->prev_paused;
	else
		list->last = peer->prev_paused;
}

/* NULL: the connection is not paused. */
static void set_paused_in(struct peer *peer, struct peer_list *list)
{
	if (peer->paused_in == list)
		return;
	if (peer->paused_in)
		remove_from(peer->paused_in, peer);
	peer->paused_in = list;
	if (list)
		append(list, peer);
}

/* Returns the events to watch for: requests, or space in the socket while
 * replies are queued. */
static int events_of(const struct peer *peer, bool is_full, bool is_late)
{
	if (reply_queue_waits_for_reader(&peer->replies))
		return UV_DISCONNECT;
	if (!reply_queue_is_empty(&peer->replies))
		return UV_WRITABLE | UV_DISCONNECT;
	if (peer_is_being_granted(peer) || is_late)
		return 0; /* until peer_on_granted() or peers_on_idle() */
	return is_full ? UV_DISCONNECT : UV_READABLE;
}

/* Watch for the right events. No requests are read until the descriptors that
 * this user sent earlier are closed and other users have had their turn. */
static void update_poll(struct peer *peer)
{
	struct sessions *sessions = peer->sessions;
	struct account *account = peer->replies.account;
	bool is_full = closer_is_full(&sessions->base->closer, account->uid);
	bool is_late = !is_full && is_sated(sessions, account);
	bool is_ready = reply_queue_is_empty(&peer->replies) &&
			!peer_is_being_granted(peer);
	int events = events_of(peer, is_full, is_late);

	set_takes_fds(peer, !is_full);
	if (is_ready && is_full)
		set_paused_in(peer, &account->unread);
	else if (is_ready && is_late)
		set_paused_in(peer, &account->late);
	else
		set_paused_in(peer, NULL);
	if (is_ready && is_late)
		postpone(sessions, account);
	if (events == peer->events)
		return;
	peer->events = events;
	if (uv_poll_start(&peer->poll, events, on_event) < 0)
		peer_close(peer);
}

static bool has_input(const struct peer *peer)
{
	struct pollfd pollfd = {.fd = peer->sock_fd, .events = POLLIN};

	return poll(&pollfd, 1, 0) > 0;
}

/* Returns the connection to resume next. While descriptors of the user must be
 * closed first, a late one is not read, but its end must be noticed. */
static struct peer *next_paused(const struct sessions *sessions,
				const struct account *account)
{
	if (account->unread.first &&
	    !closer_is_full(&sessions->base->closer, account->uid))
		return account->unread.first;
	return account->late.first;
}

/*
 * Resume paused connections of the user up to one that has input. The next ones
 * follow after the event or the end of that one, so a user with many
 * connections gets no more time of the loop than one with few, and resuming
 * them takes no long step. A connection without input delays none of the
 * others.
 */
static void resume_next(struct sessions *sessions, struct account *account)
{
	struct peer *peer;
	int n_left = RESUMED_AT_ONCE;

	while ((peer = next_paused(sessions, account))) {
		if (n_left-- == 0 || is_sated(sessions, account)) {
			postpone(sessions, account);
			return;
		}
		update_poll(peer);
		if (peer->is_closing ||
		    (peer->events & UV_READABLE && has_input(peer)))
			return;
	}
}

bool peers_on_idle(struct sessions *sessions)
{
	struct account *account = sessions->postponed, *next;

	sessions->postponed = NULL;
	for (; account; account = next) {
		next = account->next_postponed;
		account->is_postponed = false;
		account->iteration = 0;
		resume_next(sessions, account);
	}
	return false;
}

void peers_resume(struct sessions *sessions, uint32_t uid)
{
	struct account *account = accounts_get(&sessions->base->accounts, uid);

	if (account)
		resume_next(sessions, account);
}

static void note_shortage(const struct peer *peer)
{
	struct sessions *sessions = peer->sessions;

	if (!peer->replies.is_short || sessions->is_short_noted)
		return;
	sessions->is_short_noted = true;
	log_line(LOG_LEVEL_ERROR,
		 "replies with descriptors wait until clients have read those "
		 "that they were sent: the limit is reached; raise LimitNOFILE "
		 "(this is logged once)");
}

static void flush(struct peer *peer)
{
	if (reply_queue_flush(&peer->replies, NULL) != FRAME_OK) {
		peer_close(peer);
		return;
	}
	note_shortage(peer);
	update_poll(peer);
}

static void on_retry(void *data, uint32_t index)
{
	(void)index;
	flush(data);
}

/* The log line becomes rarer: it is written for drops 1, 2, 4, 8 and so on. */
void peer_drop(struct peer *peer, const struct error *cause)
{
	uint64_t n = ++peer->sessions->n_dropped_peers;

	if ((n & (n - 1)) == 0)
		log_line(LOG_LEVEL_WARNING,
			 "the connection of process %d of uid %u was dropped "
			 "(%llu so far): %s",
			 (int)peer->cred.pid, (unsigned int)peer->cred.uid,
			 (unsigned long long)n, cause->msg);
	peer_close(peer);
}

static void send_frame(struct peer *peer, const struct frame *frame)
{
	struct error err = ERROR_NULL;
	int r;

	r = reply_queue_send(&peer->replies, frame, &err);
	if (r == FRAME_EOF)
		peer_close(peer);
	else if (r < 0)
		peer_drop(peer, &err);
	else if (!reply_queue_is_empty(&peer->replies)) {
		note_shortage(peer);
		update_poll(peer);
		/* The other paused connections must not wait for the next event
		 * of this one. */
		resume_next(peer->sessions, peer->replies.account);
	}
}

void peer_reply(struct peer *peer, uint16_t kind, uint64_t number, int32_t code,
		const uint8_t *body, size_t size, const int *fds,
		uint16_t n_fds)
{
	struct frame frame = {
		.kind = kind,
		.n_fds = n_fds,
		.number = number,
		.code = code,
		.epoch = peer->sessions->store->catalog.header->epoch,
		.body = body,
		.body_size = (uint32_t)size,
	};

	if (peer->is_closing)
		return;
	assert(n_fds <= FRAME_MAX_FDS && size <= FRAME_MAX_BODY);
	for (uint16_t i = 0; i < n_fds; i++)
		frame.fds[i] = fds[i];
	send_frame(peer, &frame);
}

/* Send a reply without fds. If it cannot be encoded, its body is empty. */
static void send_reply(struct peer *peer, uint64_t number,
		       const struct reply *reply)
{
	uint8_t *body = NULL;
	size_t size = 0;

	(void)reply_encode(reply, &body, &size, NULL);
	peer_reply(peer, reply->kind, number, reply->code, body, size, NULL, 0);
	free(body);
}

void peer_reply_error(struct peer *peer, uint16_t kind, uint64_t number,
		      const struct error *cause)
{
	struct reply reply = {
		.kind = kind,
		.code = cause->code,
		.sentence = cause->msg,
	};

	send_reply(peer, number, &reply);
}

void peer_end_goodbye(struct peer *peer, uint64_t number)
{
	struct reply reply = {.kind = MESSAGE_GOODBYE};

	send_reply(peer, number, &reply);
}

/* --- its session --------------------------------------------------------- */

uint32_t peer_read_groups(int sock_fd, gid_t ret[CREDENTIALS_MAX_GROUPS])
{
	socklen_t size = CREDENTIALS_MAX_GROUPS * sizeof(gid_t);

	if (failpoint_fail("session.groups") < 0)
		return 0;
	/* If this fails (more groups than fit, or an old kernel), only the
	 * primary group counts, so the client can only get fewer rights. */
	if (getsockopt(sock_fd, SOL_SOCKET, SO_PEERGROUPS, ret, &size) < 0)
		return 0;
	return (uint32_t)(size / sizeof(gid_t));
}

void peer_attach(struct session *session, struct peer *peer)
{
	if (session->peer)
		session->peer->session = NULL;
	session->peer = peer;
	memset(session->sent_chunks, 0, sizeof(session->sent_chunks));
	session->sent_replies = 0;
	session->read_replies = session->received_replies = 0;
	waiters_drop_session(session);
	if (!peer)
		return;
	peer->session = session;
	session->holdings.credentials.n_groups = peer_read_groups(
		peer->sock_fd, session->holdings.credentials.groups);
}

void peer_on_granted(struct peer *peer)
{
	if (!peer->is_closing)
		update_poll(peer);
}

static void handle(struct peer *peer, int status, int events)
{
	const struct sessions *sessions = peer->sessions;

	if (status < 0)
		peer_close(peer);
	else if (events & UV_WRITABLE)
		flush(peer);
	else if (peer_is_being_granted(peer) ||
		 is_sated(sessions, peer->replies.account))
		update_poll(peer);
	else if (events & UV_READABLE &&
		 !closer_is_full(&sessions->base->closer, peer->cred.uid))
		peer->on_readable(peer);
	else if (events & UV_DISCONNECT)
		peer_close(peer);
	else
		update_poll(peer);
}

static void on_event(uv_poll_t *poll, int status, int events)
{
	struct peer *peer = poll->data;
	struct account *account = peer->replies.account;
	const struct meter *meter = &peer->sessions->base->loop.meter;
	uint64_t began_ns;

	if (peer->is_closing)
		return;
	meter_begin(&peer->sessions->base->loop.meter);
	began_ns = meter->piece_ns;
	handle(peer, status, events);
	if (account->iteration != meter->at_ns)
		account->iteration_ns = 0;
	account->iteration = meter->at_ns;
	account->iteration_ns += meter->piece_ns - began_ns;
	resume_next(peer->sessions, account);
}

/* --- lifetime ------------------------------------------------------------ */

static int read_credentials(struct peer *peer, struct error *err)
{
	socklen_t size = sizeof(peer->cred);

	if (getsockopt(peer->sock_fd, SOL_SOCKET, SO_PEERCRED, &peer->cred,
		       &size) < 0)
		return error_errno(err, -errno,
				   "cannot read the peer's credentials");
	return 0;
}

/* Charge the connection to its uid. */
static int charge(struct peer *peer, struct error *err)
{
	struct accounts *accounts = &peer->sessions->base->accounts;
	struct account *account = accounts_get(accounts, peer->cred.uid);
	int r;

	if (!account)
		return error_nomem(err, "an account");
	r = account_charge(accounts, account, ACCOUNT_QUEUE, PEER_COST, err);
	if (r < 0)
		return error_wrap(err, r,
				  "cannot accept one more connection of uid %u",
				  (unsigned int)peer->cred.uid);
	peer->replies.account = account;
	peer->sessions->n_users += account->n_peers++ == 0;
	return 0;
}

static int check_closer(const struct peer *peer, struct error *err)
{
	uint32_t uid = peer->cred.uid;

	if (!closer_is_crowded(&peer->sessions->base->closer, uid))
		return 0;
	return error_set(err, -EBUSY,
			 "uid %u has sent more than %d descriptors that cannot "
			 "be closed",
			 uid, CLOSER_CROWDED);
}

static void on_closed(uv_handle_t *handle)
{
	free(handle->data);
}

/* Read the option that the listener had when the client connected. Before Linux
 * 6.16 all connections accept descriptors. */
static void read_takes_fds(struct peer *peer)
{
	int value = 1;
	socklen_t size = sizeof(value);

	(void)getsockopt(peer->sock_fd, SOL_SOCKET, SO_PASSRIGHTS, &value,
			 &size);
	peer->takes_fds = peer->took_fds = value;
}

static void close_socket(struct peer *peer)
{
	struct sessions *sessions = peer->sessions;
	struct leftover socket = {
		.list = &sessions->leftovers,
		.closer = &sessions->base->closer,
		.sock_fd = peer->sock_fd,
		.uid = peer->cred.uid,
		.took_fds = peer->took_fds,
		.account = peer->replies.account,
		.charge = PEER_COST,
		.look.deadlines = &sessions->base->deadlines,
	};

	if (reply_queue_has_unread_fds(&peer->replies))
		leftover_keep(&socket);
	else
		leftover_close(&socket);
}

static void release(struct peer *peer)
{
	struct account *account = peer->replies.account;

	reply_queue_deinit(&peer->replies);
	hello_deinit(&peer->hello);
	if (account)
		peer->sessions->n_users -= --account->n_peers == 0;
	close_socket(peer);
}

static int set_up(struct peer *peer, struct error *err)
{
	const int on = 1;
	int r;

	r = read_credentials(peer, err);
	if (r < 0)
		return r;
	r = check_closer(peer, err);
	if (r < 0)
		return r;
	r = charge(peer, err);
	if (r < 0)
		return r;
	/* The listener has this option too, for frames that were sent before
	 * this point. */
	if (setsockopt(peer->sock_fd, SOL_SOCKET, SO_PASSCRED, &on,
		       sizeof(on)) < 0)
		return error_errno(err, -errno,
				   "cannot enable credentials on a socket");
	r = uv_poll_init(&peer->sessions->base->loop.uv, &peer->poll,
			 peer->sock_fd);
	if (r < 0)
		return error_set(err, r, "cannot watch a connection: %s",
				 uv_strerror(r));
	peer->poll.data = peer;
	return 0;
}

int peer_new(struct sessions *sessions, int sock_fd, peer_fn *on_readable,
	     struct error *err)
{
	struct peer *peer = calloc(1, sizeof(*peer));
	int r;

	if (!peer) {
		closer_put_connection(&sessions->base->closer, OVERFLOW_UID,
				      sock_fd);
		return error_nomem(err, "a connection");
	}
	peer->sessions = sessions;
	peer->sock_fd = sock_fd;
	peer->on_readable = on_readable;
	read_takes_fds(peer);
	hello_init(&peer->hello, sessions, sock_fd, &peer->cred);
	peer->replies = (struct reply_queue){
		.sock_fd = sock_fd,
		.accounts = &sessions->base->accounts,
		.retry.deadlines = &sessions->base->deadlines,
		.retry.fn = on_retry,
		.retry.data = peer,
	};
	r = set_up(peer, err);
	if (r < 0) {
		release(peer);
		free(peer);
		return r;
	}
	peer->next = sessions->peers;
	if (peer->next)
		peer->next->prev = peer;
	sessions->peers = peer;
	sessions->n_peers++;
	update_poll(peer);
	return 0;
}

void peer_close(struct peer *peer)
{
	struct sessions *sessions = peer->sessions;

	if (peer->is_closing)
		return;
	peer->is_closing = true;
	uv_poll_stop(&peer->poll);
	if (peer->session)
		peer_attach(peer->session, NULL);
	if (peer->prev)
		peer->prev->next = peer->next;
	else
		sessions->peers = peer->next;
	if (peer->next)
		peer->next->prev = peer->prev;
	sessions->n_peers--;
	set_paused_in(peer, NULL);
	uv_close((uv_handle_t *)&peer->poll, on_closed);
	release(peer); /* last, since its socket is no longer watched */
	resume_next(sessions, peer->replies.account);
}
