/*
 * Sends and receives frames over SOCK_SEQPACKET.
 *
 * The kernel installs file descriptors in this process before it can check the
 * message. So all descriptors of all control messages are collected first, even
 * if the message is wrong otherwise.
 */
#include "proto/frame.h"

#include "proto/error.h"
#include "proto/failpoint.h"
#include <assert.h>
#include <errno.h>
#include <linux/sockios.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

struct header {
	uint32_t magic;
	uint16_t kind;
	uint16_t n_fds;
	uint64_t number;
	uint64_t answered;
	int32_t code;
	uint32_t body_size;
	uint64_t epoch;
};
_Static_assert(sizeof(struct header) == FRAME_HEADER_SIZE, "no padding");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
	       "fields are sent as they are");

#define FLAG_ONE_WAY UINT64_C(1) /* in the field of the epoch */

#define MAX_ERRNO 4095 /* as in the kernel */

/* The buffer has space for all descriptors of one message, because the kernel
 * closes those that do not fit, and that can block. */
#define SCM_MAX_FD 253
#define CONTROL_SPACE                                                          \
	(CMSG_SPACE(SCM_MAX_FD * sizeof(int)) +                                \
	 CMSG_SPACE(sizeof(struct ucred)))
_Static_assert(CONTROL_SPACE / sizeof(int) <= FRAME_N_REFUSED,
	       "all that may come fits");

union control {
	struct cmsghdr align;
	char bytes[CONTROL_SPACE];
};

static struct header header_of(const uint8_t *buffer)
{
	struct header header;

	memcpy(&header, buffer, sizeof(header));
	return header;
}

static void put_rights(struct msghdr *msg, union control *control,
		       const struct frame *frame)
{
	size_t size = frame->n_fds * sizeof(int);
	struct cmsghdr *cmsg;

	memset(control, 0, sizeof(*control));
	msg->msg_control = control;
	msg->msg_controllen = CMSG_SPACE(size);
	cmsg = CMSG_FIRSTHDR(msg);
	cmsg->cmsg_level = SOL_SOCKET;
	cmsg->cmsg_type = SCM_RIGHTS;
	cmsg->cmsg_len = CMSG_LEN(size);
	memcpy(CMSG_DATA(cmsg), frame->fds, size);
}

static ssize_t send_message(int sock_fd, const struct msghdr *msg)
{
	ssize_t n = failpoint_fail("frame.send");

	if (n < 0)
		return n;
	do {
		n = sendmsg(sock_fd, msg, MSG_NOSIGNAL | MSG_DONTWAIT);
	} while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : n;
}

static ssize_t receive_message(int sock_fd, struct msghdr *msg)
{
	ssize_t n = failpoint_fail("frame.recv");

	if (n < 0)
		return n;
	do {
		n = recvmsg(sock_fd, msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	} while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : n;
}

int frame_send(int sock_fd, const struct frame *frame, struct error *err)
{
	struct header header = {
		.magic = FRAME_MAGIC,
		.kind = frame->kind,
		.n_fds = frame->n_fds,
		.number = frame->number,
		.answered = frame->answered,
		.code = frame->code,
		.body_size = frame->body_size,
		.epoch = frame->is_one_way ? FLAG_ONE_WAY : frame->epoch,
	};
	struct iovec iov[] = {
		{&header, sizeof(header)},
		{(void *)(uintptr_t)frame->body, frame->body_size},
	};
	struct msghdr msg = {.msg_iov = iov, .msg_iovlen = 2};
	union control control;
	ssize_t n;

	assert(frame->n_fds <= FRAME_MAX_FDS);
	if (frame->body_size > FRAME_MAX_BODY)
		return error_set(err, -EMSGSIZE,
				 "a message of %u bytes is larger than a "
				 "frame, which has at most %d",
				 frame->body_size, FRAME_MAX_BODY);
	if (frame->n_fds > 0)
		put_rights(&msg, &control, frame);
	n = send_message(sock_fd, &msg);
	if (n == -EAGAIN)
		return FRAME_AGAIN;
	if (n == -EPIPE || n == -ECONNRESET)
		return FRAME_EOF;
	if (n < 0)
		return error_errno(err, (int)n,
				   "cannot send a message of %u bytes with %u "
				   "file descriptors",
				   frame->body_size, frame->n_fds);
	return FRAME_OK;
}

bool frame_has_unread(int sock_fd)
{
	int n = 0;

	return ioctl(sock_fd, SIOCOUTQ, &n) == 0 && n > 0;
}

static void collect_fds(struct cmsghdr *cmsg, struct frame_refused *list)
{
	size_t size = cmsg->cmsg_len - CMSG_LEN(0);

	/* the control buffer cannot have more descriptors than the list */
	assert(list->n + size / sizeof(int) <= FRAME_N_REFUSED);
	memcpy(list->fds + list->n, CMSG_DATA(cmsg), size);
	list->n += size / sizeof(int);
}

static void take_control(struct msghdr *msg, struct frame_refused *list,
			 struct frame_sender *sender)
{
	struct cmsghdr *cmsg;
	struct ucred cred;

	list->n = 0;
	for (cmsg = CMSG_FIRSTHDR(msg); cmsg; cmsg = CMSG_NXTHDR(msg, cmsg)) {
		if (cmsg->cmsg_level != SOL_SOCKET)
			continue;
		if (cmsg->cmsg_type == SCM_RIGHTS)
			collect_fds(cmsg, list);
		/* skip credentials that were truncated */
		if (cmsg->cmsg_type != SCM_CREDENTIALS ||
		    cmsg->cmsg_len != CMSG_LEN(sizeof(cred)))
			continue;
		memcpy(&cred, CMSG_DATA(cmsg), sizeof(cred));
		*sender = (struct frame_sender){cred.pid, cred.uid, cred.gid};
	}
}

static int check(const struct msghdr *msg, size_t size, size_t n_fds,
		 const uint8_t *buffer, struct error *err)
{
	struct header header;

	/* The buffer is large enough, so truncation means that this process has
	 * reached its limit of descriptors. */
	if (msg->msg_flags & MSG_CTRUNC)
		return error_set(err, -EMFILE,
				 "file descriptors of a message were cut off: "
				 "this process may open no more; close some, "
				 "or raise its limit (ulimit -n)");
	if (msg->msg_flags & MSG_TRUNC)
		return error_set(err, -EPROTO,
				 "a message is larger than %d bytes",
				 FRAME_MAX_SIZE);
	header = header_of(buffer);
	if (size < sizeof(header) || header.magic != FRAME_MAGIC)
		return error_set(err, -EPROTO,
				 "a message of %zu bytes is not of this "
				 "protocol",
				 size);
	if (header.body_size != size - FRAME_HEADER_SIZE)
		return error_set(err, -EPROTO,
				 "a message announces a body of %u bytes and "
				 "has %zu",
				 header.body_size, size - FRAME_HEADER_SIZE);
	if (header.n_fds != n_fds || n_fds > FRAME_MAX_FDS)
		return error_set(err, -EPROTO,
				 "a message announces %u file descriptors and "
				 "has %zu; at most %d may travel",
				 header.n_fds, n_fds, FRAME_MAX_FDS);
	if (header.code > 0 || header.code < -MAX_ERRNO)
		return error_set(err, -EPROTO,
				 "a message has the code %d, which is not a "
				 "negative errno",
				 header.code);
	return 0;
}

int frame_take(int sock_fd, uint8_t *buffer, struct frame *ret,
	       struct frame_refused *ret_refused, struct frame_sender *sender,
	       struct error *err)
{
	struct iovec iov = {buffer, FRAME_MAX_SIZE};
	union control control;
	struct msghdr msg = {.msg_iov = &iov,
			     .msg_iovlen = 1,
			     .msg_control = &control,
			     .msg_controllen = sizeof(control)};
	struct frame_sender from = {0};
	struct header header;
	ssize_t n;
	int r;

	ret_refused->n = 0;
	n = receive_message(sock_fd, &msg);
	if (n == -EAGAIN)
		return FRAME_AGAIN;
	if (n == -ECONNRESET)
		return FRAME_EOF;
	if (n < 0)
		return error_errno(err, (int)n, "cannot receive a message");
	take_control(&msg, ret_refused, &from);
	/* An empty message looks like the end of the connection, but may
	 * contain descriptors. */
	if (n == 0)
		return FRAME_EOF;
	r = check(&msg, (size_t)n, ret_refused->n, buffer, err);
	if (r < 0)
		return r;
	header = header_of(buffer);
	*ret = (struct frame){
		.kind = header.kind,
		.n_fds = header.n_fds,
		.number = header.number,
		.answered = header.answered,
		.code = header.code,
		.epoch = header.epoch,
		.is_one_way = header.epoch == FLAG_ONE_WAY,
		.body = buffer + FRAME_HEADER_SIZE,
		.body_size = header.body_size,
	};
	memset(ret->fds, 0xff, sizeof(ret->fds)); /* all are -1 */
	memcpy(ret->fds, ret_refused->fds, ret_refused->n * sizeof(int));
	ret_refused->n = 0;
	if (sender)
		*sender = from;
	return FRAME_OK;
}

int frame_recv(int sock_fd, uint8_t *buffer, struct frame *ret,
	       struct frame_sender *sender, struct error *err)
{
	struct frame_refused refused;
	int r = frame_take(sock_fd, buffer, ret, &refused, sender, err);

	while (refused.n > 0)
		(void)close(refused.fds[--refused.n]);
	return r;
}

void frame_close_fds(struct frame *frame)
{
	for (uint16_t i = 0; i < frame->n_fds; i++) {
		if (frame->fds[i] >= 0)
			(void)close(frame->fds[i]);
		frame->fds[i] = -1;
	}
}
