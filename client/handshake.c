/*
 * Connects and says hello. The caller's deadline limits all of this: a broker
 * that hangs must not block its clients in connect.
 */
#include "client/handshake.h"
#include "client/clock.h"
#include "client/own_fd.h"
#include "proto/error.h"
#include "proto/failpoint.h"
#include "proto/frame.h"
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* Returns what a user can do if connect() has failed with this errno. */
static const char *remedy_of(int code)
{
	switch (code) {
	case -EACCES:
	case -EPERM:
		return "only its owner and group may; join the group, or name "
		       "another socket with FSDP_SOCKET";
	case -EAGAIN:
		return "too many processes connect now; try again later";
	default:
		return "start it, or name its socket with FSDP_SOCKET";
	}
}

static int open_socket(const char *path, int *ret_fd, struct error *err)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	size_t size = strlen(path);
	int fd, r;

	if (size == 0)
		return error_set(err, -EINVAL,
				 "cannot connect to fsdpd: the path of its "
				 "socket is empty; name one, or leave it out");
	if (size >= sizeof(address.sun_path))
		return error_set(err, -ENAMETOOLONG,
				 "cannot connect to fsdpd at %s: a socket's "
				 "path has at most %zu bytes; name a shorter "
				 "one",
				 path, sizeof(address.sun_path) - 1);
	memcpy(address.sun_path, path, size);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return error_errno(err, -errno, "cannot make a socket");
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
		r = -errno;
		(void)close(fd);
		error_set(err, r, "cannot connect to fsdpd at %s: %s; %s", path,
			  strerrordesc_np(-r), remedy_of(r));
		/* EAGAIN: the backlog is full; the other two: no broker
		 * listens, perhaps not yet. */
		return r == -EAGAIN || r == -ENOENT || r == -ECONNREFUSED
			       ? HANDSHAKE_AGAIN
			       : r;
	}
	*ret_fd = fd;
	return 0;
}

/* Wait for events of the socket. Returns 0, -EINTR, or HANDSHAKE_AGAIN with
 * -ETIMEDOUT in `err`. */
static int wait_for(const struct identity *self, int fd, short events,
		    int64_t deadline_ms, struct error *err)
{
	struct pollfd item = {.fd = fd, .events = events};

	for (;;) {
		int64_t left_ms = deadline_ms - clock_now_ms();

		if (left_ms <= 0) {
			error_set(err, -ETIMEDOUT,
				  "fsdpd does not answer: it starts, fails "
				  "to start, or is stopped; see its log, by "
				  "'systemctl status fsdpd' for example");
			return HANDSHAKE_AGAIN;
		}
		if (poll(&item, 1, interrupt_slice(&self->interrupt, left_ms)) >
		    0)
			return 0;
		if (interrupt_is_asked(&self->interrupt))
			return interrupt_refuse(err);
	}
}

/*
 * Wait until a frame may be sent again, after frame_send() returned `r`.
 * -EPERM: the broker accepts no descriptors now, from this user or on
 * connections that it has not accepted yet (broker/session/listener.h), and no
 * event reports when it accepts them again.
 */
static int wait_to_send(const struct identity *self, int fd, int r,
			int64_t deadline_ms, struct error *err)
{
	int64_t soon_ms = clock_now_ms() + 1;

	if (r == FRAME_AGAIN)
		return wait_for(self, fd, POLLOUT, deadline_ms, err);
	if (soon_ms < deadline_ms) {
		r = wait_for(self, fd, 0, soon_ms, err);
		return r == HANDSHAKE_AGAIN ? 0 : r;
	}
	error_set(err, -EAGAIN,
		  "fsdpd accepts no descriptors now, because it has too many "
		  "to close; try again");
	return HANDSHAKE_AGAIN;
}

static int send_request(const struct identity *self, int fd,
			const struct request *request, const int *fds,
			uint16_t n_fds, int64_t deadline_ms, struct error *err)
{
	struct frame frame = {.kind = request->kind, .n_fds = n_fds};
	uint8_t *body;
	size_t size;
	int r;

	r = request_encode(request, &body, &size, err);
	if (r < 0)
		return r;
	frame.body = body;
	frame.body_size = (uint32_t)size;
	for (uint16_t i = 0; i < n_fds; i++)
		frame.fds[i] = fds[i];
	do {
		r = frame_send(fd, &frame, err);
	} while ((r == FRAME_AGAIN || (r == -EPERM && n_fds > 0)) &&
		 !(r = wait_to_send(self, fd, r, deadline_ms, err)));
	free(body);
	if (r == FRAME_EOF) {
		error_set(err, -ECONNRESET, "fsdpd closed the connection");
		return HANDSHAKE_AGAIN;
	}
	return r;
}

/* Take the descriptors of a new session. A client that reconnects has them
 * already. */
static int take_fds(const struct identity *self, struct frame *frame,
		    struct greeting *ret, struct error *err)
{
	if (self->is_reconnect)
		return 0;
	if (frame->n_fds != GREETING_MAX_FDS)
		return error_set(err, -EPROTO,
				 "fsdpd's hello brought %u descriptors, not %u",
				 frame->n_fds, GREETING_MAX_FDS);
	memcpy(ret->fds, frame->fds, sizeof(ret->fds));
	frame->n_fds = 0;
	return 0;
}

static int take_reply(const struct identity *self, struct frame *frame,
		      struct greeting *ret, struct error *err)
{
	struct reply reply;
	int r;

	if (frame->kind != MESSAGE_HELLO)
		return error_set(err, -EPROTO,
				 "fsdpd replied to the hello with a %s",
				 message_kind_name(frame->kind));
	r = reply_decode(frame->kind, frame->code, frame->body,
			 frame->body_size, &reply, err);
	if (r < 0)
		return r;
	if (reply.code < 0)
		r = error_set(err, reply.code, "%s", reply.sentence);
	else if (!reply.hello.is_challenge)
		r = take_fds(self, frame, ret, err);
	if (r == 0) {
		ret->hello = reply.hello;
		ret->epoch = frame->epoch;
	}
	reply_deinit(&reply);
	return r;
}

static int receive_reply(const struct identity *self, int fd,
			 int64_t deadline_ms, struct greeting *ret,
			 struct error *err)
{
	uint8_t *buffer = malloc(FRAME_MAX_SIZE);
	struct frame frame;
	int r;

	if (!buffer)
		return error_nomem(err, "a frame");
	do {
		r = wait_for(self, fd, POLLIN, deadline_ms, err);
		if (r == 0)
			r = frame_recv(fd, buffer, &frame, NULL, err);
		else
			goto out;
	} while (r == FRAME_AGAIN);
	if (r == FRAME_EOF) {
		error_set(err, -ECONNRESET, "fsdpd closed the connection");
		r = HANDSHAKE_AGAIN;
	} else if (r == FRAME_OK) {
		r = take_reply(self, &frame, ret, err);
		frame_close_fds(&frame);
	}
out:
	free(buffer);
	return r;
}

static int say_hello(const struct identity *self, int fd, int64_t deadline_ms,
		     struct greeting *ret, struct error *err)
{
	struct request request = {
		.kind = MESSAGE_HELLO,
		.hello = {.major = PROTOCOL_MAJOR,
			  .minor = PROTOCOL_MINOR,
			  .is_reconnect = self->is_reconnect,
			  .session = self->session,
			  .budget = self->budget},
	};
	int fds[2] = {self->refs_fd, self->doorbell_fd};
	int r;

	memcpy(request.hello.token, self->token, TOKEN_SIZE);
	r = send_request(self, fd, &request, fds, self->is_reconnect ? 2 : 0,
			 deadline_ms, err);
	if (r != 0)
		return r;
	r = receive_reply(self, fd, deadline_ms, ret, err);
	if (r != 0 || !ret->hello.is_challenge)
		return r;
	/* The kernel attaches our credentials to the reply; we only have to
	 * show that this process is alive and can send it. */
	request = (struct request){
		.kind = MESSAGE_CHALLENGE,
		.challenge = {.nonce = ret->hello.nonce},
	};
	r = send_request(self, fd, &request, NULL, 0, deadline_ms, err);
	if (r != 0)
		return r;
	r = receive_reply(self, fd, deadline_ms, ret, err);
	if (r == 0 && ret->hello.is_challenge)
		r = error_set(err, -EPROTO, "fsdpd asks for a second proof");
	return r;
}

void handshake_undo(int sock_fd)
{
	const struct frame goodbye = {.kind = MESSAGE_GOODBYE, .number = 1};
	char byte;

	failpoint("handshake.given_up");
	/* A reply that came too late must not stay unread: if the connection is
	 * closed then, the broker cannot read the goodbye any more. */
	(void)shutdown(sock_fd, SHUT_RD);
	while (recv(sock_fd, &byte, sizeof(byte), MSG_DONTWAIT) > 0)
		;
	(void)frame_send(sock_fd, &goodbye, NULL);
}

int handshake_refuse_closed(struct error *err)
{
	return error_set(err, -EBADF,
			 "this process has closed descriptors of its "
			 "connection to fsdpd, perhaps by closefrom(); close "
			 "the connection and call fsdp_connect() again");
}

int handshake_try(const struct identity *self, int64_t deadline_ms,
		  struct greeting *ret, struct error *err)
{
	struct greeting greeting = {.sock_fd = -1};
	int r;

	if (self->is_reconnect && (!own_fd_is(self->refs_fd, self->mark) ||
				   !own_fd_is(self->doorbell_fd, self->mark)))
		return handshake_refuse_closed(err);
	r = open_socket(self->path, &greeting.sock_fd, err);
	if (r != 0)
		return r;
	r = say_hello(self, greeting.sock_fd, deadline_ms, &greeting, err);
	if (r != 0) {
		/* The broker may have made the session. */
		if (!self->is_reconnect)
			handshake_undo(greeting.sock_fd);
		(void)close(greeting.sock_fd);
		return r;
	}
	*ret = greeting;
	return 0;
}
