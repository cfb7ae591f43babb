/*
 * Connections: the hello, the reading of requests, the queue of replies.
 *
 * One frame is read per readiness event. epoll thus serves the peers in turn,
 * and the request of a peer that sleeps until the reply costs no second
 * recvmsg() that finds the socket empty. Only after a one-way request the next
 * frame is read at once, up to a limit: its sender did not sleep, so there is
 * probably more.
 *
 * While replies are queued no frame is read. The queue of a peer that does not
 * read its replies therefore holds at most the reply to its last request and
 * those to its parked requests.
 */
#include "broker/session/peer.h"
#include "broker/base/account.h"
#include "broker/base/deadline.h"
#include "broker/broker.h"
#include "broker/session/session.h"
#include "broker/tensor/lease.h"
#include "broker/verbs/verbs.h"
#include "proto/error.h"
#include "proto/point.h"
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 /* Linux 6.5; not in the headers of 6.1 */
#endif

/* Delay before checking whether fds were read, and the limit of
 * its doubling. */
#define FIRST_RETRY_MS 1
#define LAST_RETRY_MS  64
/* Charge of a connection, for its socket buffers and records. */
#define PEER_COST 16384
/* Charge of a descriptor in a queued reply. */
#define FD_COST 4096
/* Frames read per readiness event; all but the last are one-way requests. */
#define MAX_AT_ONCE 4

struct queued_reply {
	struct queued_reply *next;
	uint64_t charged;
	struct frame frame; /* its fds are owned */
	uint8_t body[];
};

static void on_event(uv_poll_t *poll, int status, int events);

/* --- sending ------------------------------------------------------------- */

static bool has_unread(const struct peer *peer)
{
	int n = 0;

	/* If the kernel cannot tell, the bound of the queue has to suffice. */
	return ioctl(peer->sock_fd, SIOCOUTQ, &n) == 0 && n > 0;
}

bool peer_has_read_all(const struct peer *peer)
{
	return !peer->first_queued && !has_unread(peer);
}

/* Must this reply wait until the peer has read the replies already sent? */
static bool must_wait(const struct peer *peer, const struct frame *frame)
{
	return frame->n_fds > 0 && has_unread(peer);
}

static void drop_queued(struct peer *peer, struct queued_reply *reply)
{
	frame_close_fds(&reply->frame);
	account_refund(peer->account, ACCOUNT_QUEUE, reply->charged);
	free(reply);
}

/* The lease of its session still has grants to make, see lease.h. That takes a
 * few rounds of the loop, in which requests stay in the socket. */
static bool is_being_granted(const struct peer *peer)
{
	return peer->session && lease_is_open(peer->session);
}

/* Watch for requests, or, while replies are queued, for space in the
 * socket. Watch for neither until the descriptors that this user sent
 * earlier are closed. */
static void update_poll(struct peer *peer)
{
	int events = UV_READABLE;

	if (peer->first_queued)
		events = must_wait(peer, &peer->first_queued->frame)
				 ? UV_DISCONNECT
				 : UV_WRITABLE | UV_DISCONNECT;
	else if (is_being_granted(peer))
		events = 0; /* until peer_on_granted() */
	else if (closer_is_full(&peer->broker->closer, peer->uid))
		events = UV_DISCONNECT;
	if (events == peer->events)
		return;
	peer->events = events;
	if (uv_poll_start(&peer->poll, events, on_event) < 0)
		peer_close(peer);
}

static void flush(struct peer *peer);

static void on_retry(void *data, uint32_t index)
{
	(void)index;
	flush(data);
}

static void plan_retry(struct peer *peer)
{
	struct deadline deadline = {
		.at_ms = now_ms() + peer->retry_ms,
		.fn = on_retry,
		.data = peer,
		.position = &peer->retry_position,
	};

	if (peer->retry_position)
		return;
	if (deadlines_add(&peer->broker->deadlines, &deadline, NULL) < 0)
		peer_close(peer);
	if (peer->retry_ms < LAST_RETRY_MS)
		peer->retry_ms *= 2;
}

static void flush(struct peer *peer)
{
	struct queued_reply *reply;
	int r;

	while ((reply = peer->first_queued)) {
		if (must_wait(peer, &reply->frame)) {
			plan_retry(peer);
			break;
		}
		point("peer.send");
		r = frame_send(peer->sock_fd, &reply->frame, NULL);
		if (r == FRAME_AGAIN)
			break;
		if (r != FRAME_OK) {
			peer_close(peer);
			return;
		}
		peer->first_queued = reply->next;
		if (!reply->next)
			peer->last_queued = NULL;
		drop_queued(peer, reply);
		peer->retry_ms = FIRST_RETRY_MS;
	}
	if (!peer->is_closing)
		update_poll(peer);
}

static int copy_fds(struct frame *to, const struct frame *from)
{
	to->n_fds = 0;
	for (uint16_t i = 0; i < from->n_fds; i++) {
		to->fds[i] = fcntl(from->fds[i], F_DUPFD_CLOEXEC, 3);
		if (to->fds[i] < 0)
			return -errno;
		to->n_fds++;
	}
	return 0;
}

static int enqueue(struct peer *peer, const struct frame *frame,
		   struct error *err)
{
	uint64_t size = sizeof(struct queued_reply) + frame->body_size;
	uint64_t charge = size + (uint64_t)frame->n_fds * FD_COST;
	struct queued_reply *reply;
	int r;

	r = account_charge(&peer->broker->accounts, peer->account,
			   ACCOUNT_QUEUE, charge, err);
	if (r < 0)
		return r;
	reply = malloc(size);
	if (!reply) {
		account_refund(peer->account, ACCOUNT_QUEUE, charge);
		return error_set(err, -ENOMEM, "no memory to queue a reply");
	}
	reply->next = NULL;
	reply->charged = charge;
	reply->frame = *frame;
	if (frame->body_size > 0)
		memcpy(reply->body, frame->body, frame->body_size);
	reply->frame.body = reply->body;
	r = copy_fds(&reply->frame, frame);
	if (r < 0) {
		drop_queued(peer, reply);
		return error_errno(err, r, "queue descriptors");
	}
	if (peer->last_queued)
		peer->last_queued->next = reply;
	else
		peer->first_queued = reply;
	peer->last_queued = reply;
	return 0;
}

/* Close a peer because of its behaviour. The log line becomes ever rarer. */
static void drop(struct peer *peer, const struct error *cause)
{
	uint64_t n = ++peer->broker->n_dropped_peers;

	if ((n & (n - 1)) == 0)
		log_line(LOG_LEVEL_WARNING,
			 "peer %d uid %u dropped (%llu so far): %s",
			 (int)peer->pid, (unsigned int)peer->uid,
			 (unsigned long long)n, cause->msg);
	peer_close(peer);
}

static void send_frame(struct peer *peer, const struct frame *frame)
{
	struct error err = ERROR_NULL;
	int r = FRAME_AGAIN;

	if (!peer->first_queued && !must_wait(peer, frame)) {
		point("peer.send");
		r = frame_send(peer->sock_fd, frame, &err);
	}
	if (r == FRAME_OK)
		return;
	if (r == FRAME_EOF) {
		peer_close(peer);
		return;
	}
	if (r == FRAME_AGAIN)
		r = enqueue(peer, frame, &err);
	if (r < 0) {
		drop(peer, &err);
		return;
	}
	if (must_wait(peer, &peer->first_queued->frame))
		plan_retry(peer);
	if (!peer->is_closing)
		update_poll(peer);
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
		.epoch = peer->broker->catalog.header->epoch,
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

/* Send an error reply; an error in making it is ignored. */
static void reply_error(struct peer *peer, uint16_t kind, uint64_t number,
			const struct error *cause)
{
	struct reply reply = {
		.kind = kind,
		.code = cause->code,
		.sentence = cause->msg,
	};
	uint8_t *body = NULL;
	size_t size = 0;

	(void)reply_encode(&reply, &body, &size, NULL);
	peer_reply(peer, kind, number, cause->code, body, size, NULL, 0);
	free(body);
}

/* --- hello --------------------------------------------------------------- */

static void reply_hello(struct peer *peer, uint64_t number,
			const struct hello_reply *hello, const int *fds,
			uint16_t n_fds)
{
	struct reply reply = {.kind = MESSAGE_HELLO, .hello = *hello};
	struct error err = ERROR_NULL;
	uint8_t *body;
	size_t size;

	if (reply_encode(&reply, &body, &size, &err) < 0) {
		drop(peer, &err);
		return;
	}
	peer_reply(peer, MESSAGE_HELLO, number, 0, body, size, fds, n_fds);
	free(body);
}

static void fill_hello(const struct session *session, struct hello_reply *ret)
{
	*ret = (struct hello_reply){
		.session = session_record(session)->id,
		.n_slots = TABLE_SLOTS,
	};
	memcpy(ret->token, session_record(session)->token, TOKEN_SIZE);
}

static int begin_session(struct peer *peer, uint64_t number, struct error *err)
{
	struct broker *broker = peer->broker;
	int pidfd = peer->pidfd;
	struct hello_reply hello;
	struct session *session;
	int fds[3];
	int r;

	r = session_check_room(broker, peer->uid, peer->gid, peer->sock_fd,
			       err);
	if (r < 0)
		return r;
	peer->pidfd = -1;
	r = session_new(broker, peer->pid, peer->uid, peer->gid, pidfd,
			peer->hello.budget, &session, err);
	if (r < 0)
		return r;
	session_attach_peer(session, peer);
	fds[0] = broker->table_readonly_fd;
	fds[1] = session->refs.fd;
	fds[2] = session->doorbell_fd;
	fill_hello(session, &hello);
	point("hello.new");
	reply_hello(peer, number, &hello, fds, 3);
	return 0;
}

static void drop_hello_fds(struct peer *peer)
{
	for (int i = 0; i < 2; i++) {
		if (peer->hello_fds[i] >= 0)
			closer_put(&peer->broker->closer, peer->uid,
				   peer->hello_fds[i]);
		peer->hello_fds[i] = -1;
	}
}

static void close_both(int first_fd, int second_fd)
{
	if (first_fd >= 0)
		close(first_fd);
	if (second_fd >= 0)
		close(second_fd);
}

static int resume_session(struct peer *peer, uint64_t number, struct error *err)
{
	struct broker *broker = peer->broker;
	const struct session_record *record;
	struct hello_reply hello;
	struct session *session;
	int refs_fd, doorbell_fd = -1, r;

	session = session_find(broker, peer->hello.session, peer->hello.token,
			       err);
	if (!session)
		return -ESTALE;
	record = session_record(session);
	if (record->pid != (uint32_t)peer->pid || record->uid != peer->uid)
		return error_set(err, -EPERM,
				 "session %llu belongs to process %u; connect "
				 "in the process that uses the connection",
				 (unsigned long long)record->id, record->pid);
	/* A file's server may be called at every close of a copy, not only the
	 * last. So only a memory file and an eventfd are copied, whose copies
	 * may be closed here; the last close is left to the closer. */
	if (fcntl(peer->hello_fds[0], F_GET_SEALS) < 0)
		return error_set(err, -EINVAL,
				 "cannot take the session back: its "
				 "ref-counter file is no memory file");
	if (session->doorbell_fd < 0) {
		r = session_check_doorbell(peer->hello_fds[1], err);
		if (r < 0)
			return r;
		doorbell_fd = fcntl(peer->hello_fds[1], F_DUPFD_CLOEXEC, 3);
	}
	refs_fd = fcntl(peer->hello_fds[0], F_DUPFD_CLOEXEC, 3);
	r = point_fail("hello.copy");
	if (refs_fd < 0 || (session->doorbell_fd < 0 && doorbell_fd < 0))
		r = -errno;
	if (r < 0) {
		close_both(refs_fd, doorbell_fd);
		return error_errno(err, r, "copy the session's descriptors");
	}
	r = session_reattach(session, refs_fd, doorbell_fd, err);
	drop_hello_fds(peer);
	if (r < 0)
		return r;
	r = session_watch_process(session, peer->pidfd, err);
	peer->pidfd = -1;
	if (r < 0)
		return r;
	if (session->peer)
		peer_close(session->peer);
	session_attach_peer(session, peer);
	fill_hello(session, &hello);
	point("hello.again");
	reply_hello(peer, number, &hello, NULL, 0);
	return 0;
}

/* The identity of the peer is verified: give it its session. */
static int complete_hello(struct peer *peer, uint64_t number, struct error *err)
{
	const int off = 0;
	int r;

	if (peer->hello.is_reconnect)
		r = resume_session(peer, number, err);
	else
		r = begin_session(peer, number, err);
	/* From here on the sender of a frame is not checked, so ask for
	 * credentials no longer. */
	if (r == 0 && !peer->is_closing)
		(void)setsockopt(peer->sock_fd, SOL_SOCKET, SO_PASSCRED, &off,
				 sizeof(off));
	return r;
}

static int get_peer_pidfd(int sock_fd)
{
	socklen_t size = sizeof(int);
	int pidfd = -1;
	int r = point_fail("peer.pidfd");

	if (r < 0)
		return r;
	if (getsockopt(sock_fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &size) < 0)
		return -errno;
	return pidfd;
}

/* Open the pidfd of the peer. `*ret_is_proven`: it is certainly the peer's,
 * since the kernel recorded the process when it connected. */
static int open_pidfd(struct peer *peer, bool *ret_is_proven, struct error *err)
{
	int pidfd = get_peer_pidfd(peer->sock_fd);

	*ret_is_proven = true;
	if (pidfd == -ENOPROTOOPT) {
		*ret_is_proven = false;
		pidfd = (int)syscall(SYS_pidfd_open, peer->pid, 0);
		if (pidfd < 0)
			pidfd = -errno;
	}
	if (pidfd < 0)
		return error_errno(err, pidfd, "open a pidfd of process %d",
				   (int)peer->pid);
	peer->pidfd = pidfd;
	return 0;
}

static int check_sender(const struct peer *peer,
			const struct frame_sender *sender, struct error *err)
{
	if (peer->uid == OVERFLOW_UID)
		return error_set(err, -EPERM,
				 "uid %d stands for every user that is not "
				 "known here; connect from a user namespace in "
				 "which this user is mapped",
				 OVERFLOW_UID);
	if (peer->pid <= 0)
		return error_set(err, -EPERM,
				 "the connecting process is not visible in the "
				 "broker's pid namespace; share it");
	if (sender->pid != peer->pid)
		return error_set(err, -EPERM,
				 "process %d connected but process %d says "
				 "hello; connect in the process that uses the "
				 "connection",
				 (int)peer->pid, (int)sender->pid);
	return 0;
}

static int check_hello(const struct hello_request *hello,
		       const struct frame *frame, struct error *err)
{
	uint16_t n_fds = hello->is_reconnect ? 2 : 0;

	if (hello->major != PROTOCOL_MAJOR)
		return error_set(err, -EPROTO,
				 "the client speaks protocol %u.%u, this "
				 "broker (version %s) speaks %d.%d; install "
				 "the same version of both",
				 hello->major, hello->minor, FSDP_VERSION,
				 PROTOCOL_MAJOR, PROTOCOL_MINOR);
	if (frame->n_fds != n_fds)
		return error_set(err, -EPROTO,
				 "a hello came with %u descriptors, not with "
				 "%u",
				 frame->n_fds, n_fds);
	return 0;
}

static int challenge(struct peer *peer, uint64_t number, struct error *err)
{
	struct hello_reply hello = {.is_challenge = true};

	if (getrandom(&peer->nonce, sizeof(peer->nonce), 0) !=
	    (ssize_t)sizeof(peer->nonce))
		return error_errno(err, -errno, "get random bytes");
	hello.nonce = peer->nonce;
	peer->is_challenged = true;
	reply_hello(peer, number, &hello, NULL, 0);
	return 0;
}

static int handle_hello(struct peer *peer, struct frame *frame,
			const struct frame_sender *sender, struct error *err)
{
	struct request request;
	bool is_proven = false;
	int r;

	if (frame->kind != MESSAGE_HELLO)
		return error_set(err, -EPROTO,
				 "a connection begins with a hello, not with a "
				 "request of kind %u",
				 frame->kind);
	r = request_decode(frame->kind, frame->body, frame->body_size, &request,
			   err);
	if (r < 0)
		return r;
	peer->hello = request.hello;
	request_deinit(&request);
	r = check_hello(&peer->hello, frame, err);
	if (r == 0)
		r = check_sender(peer, sender, err);
	if (r == 0)
		r = open_pidfd(peer, &is_proven, err);
	if (r < 0)
		return r;
	for (uint16_t i = 0; i < frame->n_fds; i++) {
		peer->hello_fds[i] = frame->fds[i];
		frame->fds[i] = -1;
	}
	if (is_proven)
		return complete_hello(peer, frame->number, err);
	return challenge(peer, frame->number, err);
}

/*
 * The reply to the challenge carries the sender's pid as the kernel saw it, and
 * a nonce that was made after our pidfd was opened. If the process of that
 * pidfd has not exited by now, no other process can have had the pid in
 * between.
 */
static int handle_proof(struct peer *peer, const struct frame *frame,
			const struct frame_sender *sender, struct error *err)
{
	struct pollfd pollfd = {.fd = peer->pidfd, .events = POLLIN};
	struct request request;
	int r;

	if (frame->kind != MESSAGE_CHALLENGE || frame->n_fds > 0)
		return error_set(err, -EPROTO,
				 "the challenge was not answered");
	r = request_decode(frame->kind, frame->body, frame->body_size, &request,
			   err);
	if (r < 0)
		return r;
	r = check_sender(peer, sender, err);
	if (r == 0 && request.challenge.nonce != peer->nonce)
		r = error_set(err, -EPERM,
			      "the challenge was answered with a wrong nonce");
	if (r == 0 && poll(&pollfd, 1, 0) != 0)
		r = error_set(err, -ESRCH, "process %d is gone",
			      (int)peer->pid);
	request_deinit(&request);
	if (r < 0)
		return r;
	peer->is_challenged = false;
	return complete_hello(peer, frame->number, err);
}

/* --- requests ------------------------------------------------------------ */

void peer_end_goodbye(struct peer *peer, uint64_t number)
{
	struct reply reply = {.kind = MESSAGE_GOODBYE};
	uint8_t *body = NULL;
	size_t size = 0;

	(void)reply_encode(&reply, &body, &size, NULL);
	peer_reply(peer, MESSAGE_GOODBYE, number, 0, body, size, NULL, 0);
	free(body);
}

static int handle_request(struct peer *peer, struct frame *frame,
			  struct error *err)
{
	bool is_known = frame->kind > 0 && frame->kind <= MESSAGE_MAX;

	/* Memory to share may come as a descriptor. */
	if (frame->n_fds > message_takes_fd(frame->kind) && is_known)
		return error_set(err, -EPROTO,
				 "a request of kind %s came with %u "
				 "descriptors",
				 message_kind_name(frame->kind), frame->n_fds);
	if (frame->kind == MESSAGE_HELLO || frame->kind == MESSAGE_CHALLENGE)
		return error_set(err, -EPROTO,
				 "the connection has a session already");
	if (peer->session->is_ending)
		return error_set(err, -EPROTO,
				 "a request of kind %s came after the goodbye",
				 message_kind_name(frame->kind));
	if (frame->kind != MESSAGE_GOODBYE)
		return verb_dispatch(peer, frame, err);
	session_end(peer->session, frame->number);
	return 0;
}

static void handle_frame(struct peer *peer, struct frame *frame,
			 const struct frame_sender *sender)
{
	struct error err = ERROR_NULL;
	int r;

	if (peer->session)
		r = handle_request(peer, frame, &err);
	else if (peer->is_challenged)
		r = handle_proof(peer, frame, sender, &err);
	else
		r = handle_hello(peer, frame, sender, &err);
	closer_put_frame(&peer->broker->closer, peer->uid, frame);
	if (r == 0)
		return;
	/* A client that comes back while descriptors are few must not give its
	 * session up: without a reply it connects again. */
	if (r != -EMFILE || peer->session)
		reply_error(peer, frame->kind, frame->number, &err);
	drop(peer, &err);
}

/* True: another frame may have been sent with it. */
static bool read_frame(struct peer *peer)
{
	struct closer *closer = &peer->broker->closer;
	struct frame_refused refused;
	struct frame_sender sender;
	struct error err = ERROR_NULL;
	struct frame frame;
	int r;

	r = frame_take(peer->sock_fd, peer->broker->receive_buffer, &frame,
		       &refused, &sender, &err);
	while (refused.n > 0)
		closer_put(closer, peer->uid, refused.fds[--refused.n]);
	if (r == FRAME_AGAIN)
		return false;
	if (r == FRAME_EOF) {
		peer_close(peer);
		return false;
	}
	if (r < 0) {
		reply_error(peer, 0, 0, &err);
		drop(peer, &err);
		return false;
	}
	handle_frame(peer, &frame, &sender);
	return frame.is_quiet && !peer->is_closing && !peer->first_queued;
}

void peer_on_granted(struct peer *peer)
{
	if (!peer->is_closing)
		update_poll(peer);
}

static void on_event(uv_poll_t *poll, int status, int events)
{
	struct peer *peer = poll->data;
	const struct closer *closer = &peer->broker->closer;
	int n = 0;

	if (peer->is_closing)
		return;
	if (status < 0) {
		peer_close(peer);
		return;
	}
	if (events & UV_WRITABLE)
		flush(peer);
	else if (is_being_granted(peer))
		update_poll(peer);
	else if (events & UV_READABLE && !closer_is_full(closer, peer->uid))
		while (!is_being_granted(peer) && read_frame(peer) &&
		       ++n < MAX_AT_ONCE)
			;
	else if (events & UV_DISCONNECT)
		peer_close(peer);
	else
		update_poll(peer);
}

/* --- lifetime ------------------------------------------------------------ */

static int read_credentials(struct peer *peer, struct error *err)
{
	struct ucred cred;
	socklen_t size = sizeof(cred);

	if (getsockopt(peer->sock_fd, SOL_SOCKET, SO_PEERCRED, &cred, &size) <
	    0)
		return error_errno(err, -errno, "ask who the peer is");
	peer->pid = cred.pid;
	peer->uid = cred.uid;
	peer->gid = cred.gid;
	return 0;
}

/* Charge the connection to its uid. */
static int charge(struct peer *peer, struct error *err)
{
	struct accounts *accounts = &peer->broker->accounts;
	struct account *account = accounts_get(accounts, peer->uid);
	int r;

	if (!account)
		return error_set(err, -ENOMEM, "no memory for an account");
	r = account_charge(accounts, account, ACCOUNT_QUEUE, PEER_COST, err);
	if (r < 0)
		return error_wrap(err, r, "one more connection of uid %u",
				  (unsigned int)peer->uid);
	peer->account = account;
	return 0;
}

static int check_closer(const struct peer *peer, struct error *err)
{
	uint32_t uid = peer->uid;

	if (!closer_is_crowded(&peer->broker->closer, &uid))
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

/* No descriptor that is slow to close can be in the socket's buffer. */
static bool is_without_fds(int sock_fd)
{
	int has_fds = 1;
	socklen_t size = sizeof(has_fds);

	return getsockopt(sock_fd, SOL_SOCKET, SO_PASSRIGHTS, &has_fds,
			  &size) == 0 &&
	       !has_fds;
}

static void release(struct peer *peer)
{
	struct queued_reply *reply;

	while ((reply = peer->first_queued)) {
		peer->first_queued = reply->next;
		drop_queued(peer, reply);
	}
	if (peer->retry_position)
		deadlines_remove(&peer->broker->deadlines,
				 &peer->retry_position);
	drop_hello_fds(peer);
	if (peer->pidfd >= 0)
		close(peer->pidfd);
	if (peer->account)
		account_refund(peer->account, ACCOUNT_QUEUE, PEER_COST);
	if (is_without_fds(peer->sock_fd))
		close(peer->sock_fd);
	else
		closer_put_connection(&peer->broker->closer, peer->uid,
				      peer->sock_fd);
}

static int set_up(struct peer *peer, struct error *err)
{
	const int on = 1;
	int r;

	r = read_credentials(peer, err);
	if (r == 0)
		r = check_closer(peer, err);
	if (r == 0)
		r = charge(peer, err);
	if (r < 0)
		return r;
	/* A reconnect and a share carry descriptors. */
	(void)setsockopt(peer->sock_fd, SOL_SOCKET, SO_PASSRIGHTS, &on,
			 sizeof(on));
	/* The listener has the option too, for frames sent before
	 * this point. */
	if (setsockopt(peer->sock_fd, SOL_SOCKET, SO_PASSCRED, &on,
		       sizeof(on)) < 0)
		return error_errno(err, -errno, "ask for credentials");
	r = uv_poll_init(&peer->broker->loop.uv, &peer->poll, peer->sock_fd);
	if (r < 0)
		return error_set(err, r, "watch a connection: %s",
				 uv_strerror(r));
	peer->poll.data = peer;
	return 0;
}

int peer_new(struct broker *broker, int sock_fd, struct error *err)
{
	struct peer *peer = calloc(1, sizeof(*peer));
	int r;

	if (!peer) {
		closer_put_connection(&broker->closer, OVERFLOW_UID, sock_fd);
		return error_set(err, -ENOMEM, "no memory for a connection");
	}
	peer->broker = broker;
	peer->sock_fd = sock_fd;
	peer->pidfd = peer->hello_fds[0] = peer->hello_fds[1] = -1;
	peer->retry_ms = FIRST_RETRY_MS;
	r = set_up(peer, err);
	if (r < 0) {
		release(peer);
		free(peer);
		return r;
	}
	peer->next = broker->peers;
	if (peer->next)
		peer->next->prev = peer;
	broker->peers = peer;
	broker->n_peers++;
	update_poll(peer);
	return 0;
}

void peers_on_closed(struct broker *broker)
{
	struct peer *peer, *next;

	for (peer = broker->peers; peer; peer = next) {
		next = peer->next;
		update_poll(peer);
	}
	listener_update(broker);
}

void peer_close(struct peer *peer)
{
	struct broker *broker = peer->broker;

	if (peer->is_closing)
		return;
	peer->is_closing = true;
	uv_poll_stop(&peer->poll);
	if (peer->session)
		session_attach_peer(peer->session, NULL);
	if (peer->prev)
		peer->prev->next = peer->next;
	else
		broker->peers = peer->next;
	if (peer->next)
		peer->next->prev = peer->prev;
	broker->n_peers--;
	uv_close((uv_handle_t *)&peer->poll, on_closed);
	release(peer); /* last: its socket is no longer watched */
}
