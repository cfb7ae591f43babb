/*
 * One message with its file descriptors, over a SOCK_SEQPACKET socket.
 *
 * The kernel keeps message boundaries, so a frame is one sendmsg() and one
 * recvmsg(); this code knows no event loop. The broker drives it from
 * uv_poll_t, the client from poll(2). libuv is not used to receive because it
 * cannot hand over memfds and never looks at MSG_CTRUNC.
 *
 * LAYOUT of the header, little-endian, 40 bytes, the body follows
 *
 *   offset size  meaning
 *        0    4  magic, "FSD1"
 *        4    2  kind, enum message_kind
 *        6    2  number of file descriptors that travel with this frame
 *        8    8  number of the request; the reply repeats it
 *       16    8  answered: every request of this session below it is answered
 *                (requests); 0 in replies
 *       24    4  code: 0 or -errno (replies); 0 in requests
 *       28    4  bytes of body
 *       32    8  epoch of the broker (replies); in requests 0, or 1: only a
 *                refusal is answered. Any reply to a later request then says
 *                that this one is done
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct error;

#define FRAME_MAGIC       0x31445346u
#define FRAME_HEADER_SIZE 40
#define FRAME_MAX_SIZE    65536 /* header and body */
#define FRAME_MAX_BODY    (FRAME_MAX_SIZE - FRAME_HEADER_SIZE)
#define FRAME_MAX_FDS     32

struct frame {
	uint16_t kind;
	uint16_t n_fds;
	uint64_t number;
	uint64_t answered;
	int32_t code;
	uint64_t epoch;
	bool is_one_way;     /* a request of which only a refusal is answered */
	const uint8_t *body; /* borrowed */
	uint32_t body_size;
	int fds[FRAME_MAX_FDS]; /* see frame_send(), frame_recv() */
};

/* Kernel-checked identity of who sent a frame; pid 0 if none came with it. */
struct frame_sender {
	pid_t pid;
	uid_t uid;
	gid_t gid;
};

enum frame_outcome {
	FRAME_OK = 0,
	FRAME_AGAIN = 1, /* nothing to read, or no room to send, just now */
	FRAME_EOF = 2,   /* the other side is gone */
};

/*
 * Send one frame without blocking; `frame->fds` stay the caller's. -EMSGSIZE
 * if the body is larger than FRAME_MAX_BODY. FRAME_EOF if the peer is gone.
 */
int frame_send(int sock_fd, const struct frame *frame, struct error *err);

/*
 * Receive one frame without blocking into `buffer` (FRAME_MAX_SIZE bytes),
 * which `ret->body` then points into. The caller owns `ret->fds`. A frame that
 * is truncated, has a wrong magic, size or fd count is refused with -EPROTO,
 * and one of which this process cannot open all fds with -EMFILE; every fd that
 * came with it is closed. `sender` may be NULL.
 */
int frame_recv(int sock_fd, uint8_t *buffer, struct frame *ret,
	       struct frame_sender *sender, struct error *err);

/* All that one message of the kernel can bring. */
#define FRAME_N_REFUSED 280
struct frame_refused {
	size_t n;
	int fds[FRAME_N_REFUSED];
};

/*
 * The same for a process that cannot wait until what others sent is closed:
 * unless the outcome is FRAME_OK, the fds that came are in `ret_refused`, which
 * the caller owns.
 */
int frame_take(int sock_fd, uint8_t *buffer, struct frame *ret,
	       struct frame_refused *ret_refused, struct frame_sender *sender,
	       struct error *err);

/* Close the fds of a received frame that nobody has taken (>= 0). */
void frame_close_fds(struct frame *frame);
