/*
 * A frame is one message with its file descriptors on a SOCK_SEQPACKET socket.
 *
 * The kernel keeps message boundaries, so a frame is one sendmsg() and one
 * recvmsg(), and this code does not depend on an event loop. The broker calls
 * it from uv_poll_t, the client after poll(2). libuv itself cannot be used to
 * receive, because it does not pass on memfds and ignores MSG_CTRUNC.
 *
 * LAYOUT of the header (40 bytes, little-endian), which the body follows
 *
 *   offset size  meaning
 *        0    4  magic, "FSD1"
 *        4    2  kind, enum message_kind
 *        6    2  number of file descriptors of this frame
 *        8    8  number of the request; the reply repeats it
 *       16    8  answered: all requests of this session with lower numbers are
 *                answered (requests); 0 in replies
 *       24    4  code: 0 or -errno (replies); 0 in requests
 *       28    4  bytes of body
 *       32    8  epoch of the broker (replies). In requests 0, or 1 for a
 *                one-way request, which is answered only if it is refused. A
 *                reply to any later request tells that it was executed
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct error;

#define FRAME_MAGIC       0x31445346u
#define FRAME_HEADER_SIZE 40
#define FRAME_MAX_SIZE    65536 /* of header and body */
#define FRAME_MAX_BODY    (FRAME_MAX_SIZE - FRAME_HEADER_SIZE)
#define FRAME_MAX_FDS     32

struct frame {
	uint16_t kind;
	uint16_t n_fds;
	uint64_t number;
	uint64_t answered;
	int32_t code;
	uint64_t epoch;
	bool is_one_way;     /* the request is answered only if it is refused */
	const uint8_t *body; /* borrowed */
	uint32_t body_size;
	int fds[FRAME_MAX_FDS]; /* see frame_send(), frame_recv() */
};

/* The identity of the sender of a frame, checked by the kernel. `pid` is 0 if
 * the message had no credentials. */
struct frame_sender {
	pid_t pid;
	uid_t uid;
	gid_t gid;
};

enum frame_outcome {
	FRAME_OK = 0,
	FRAME_AGAIN = 1, /* nothing can be read or sent now */
	FRAME_EOF = 2,   /* the peer has closed the connection */
};

/*
 * Sends one frame without blocking. The caller keeps `frame->fds`. Returns
 * -EMSGSIZE if the body is larger than FRAME_MAX_BODY, and FRAME_EOF if the
 * peer has closed the connection.
 */
int frame_send(int sock_fd, const struct frame *frame, struct error *err);

/* Returns whether the peer still has to read what was sent. If the kernel
 * cannot tell, it returns false. */
bool frame_has_unread(int sock_fd);

/*
 * Receives one frame without blocking into `buffer` (FRAME_MAX_SIZE bytes).
 * `ret->body` points into the buffer. The caller owns `ret->fds`. Returns
 * -EPROTO if the frame is truncated or has a wrong magic, size or number of
 * descriptors, and -EMFILE if this process cannot open all descriptors. On
 * failure all received descriptors are closed. `sender` may be NULL.
 */
int frame_recv(int sock_fd, uint8_t *buffer, struct frame *ret,
	       struct frame_sender *sender, struct error *err);

/* The maximum number of descriptors in one message of the kernel. */
#define FRAME_N_REFUSED 280
struct frame_refused {
	size_t n;
	int fds[FRAME_N_REFUSED];
};

/*
 * Does the same for a process that must not block in close() of received
 * descriptors. Unless it returns FRAME_OK, the descriptors are in
 * `ret_refused`, which the caller owns.
 */
int frame_take(int sock_fd, uint8_t *buffer, struct frame *ret,
	       struct frame_refused *ret_refused, struct frame_sender *sender,
	       struct error *err);

/* Closes the descriptors of a received frame that were not taken (those that
 * are not negative). */
void frame_close_fds(struct frame *frame);
