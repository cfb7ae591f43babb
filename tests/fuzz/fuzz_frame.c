/*
 * Sends socket messages as any process could. frame_recv() must refuse one, or
 * give a frame whose body lies in the buffer and whose descriptors are open. If
 * it refuses one, no descriptor stays open.
 *
 * The first byte is the number of descriptors that are sent; the rest is the
 * message.
 */
#include "proto/error.h"
#include "proto/frame.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* This is more than a frame may have, and less than a socket message may. */
#define MAX_FDS (FRAME_MAX_FDS + 8)

static uint8_t buffer[FRAME_MAX_SIZE];

static void send_message(int sock_fd, const uint8_t *data, size_t size,
			 size_t n_fds)
{
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(sizeof(int) * MAX_FDS)];
	} control = {0};
	struct iovec iov = {(void *)data, size};
	struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
	int fds[MAX_FDS];

	for (size_t i = 0; i < n_fds; i++)
		fds[i] = sock_fd;
	if (n_fds) {
		control.header.cmsg_level = SOL_SOCKET;
		control.header.cmsg_type = SCM_RIGHTS;
		control.header.cmsg_len = CMSG_LEN(n_fds * sizeof(int));
		memcpy(CMSG_DATA(&control.header), fds, n_fds * sizeof(int));
		message.msg_control = &control;
		message.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
	}
	if (sendmsg(sock_fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
		abort();
}

static void check(const struct frame *frame, size_t n_sent)
{
	if (frame->n_fds > n_sent || frame->body_size > FRAME_MAX_BODY)
		abort();
	if (frame->body_size &&
	    (frame->body < buffer ||
	     frame->body + frame->body_size > buffer + sizeof(buffer)))
		abort();
	for (size_t i = 0; i < frame->n_fds; i++)
		if (close(frame->fds[i]) < 0)
			abort();
}

/* This number stays the same if no descriptor was left open. */
static int lowest_free_fd(void)
{
	int fd = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0);

	if (fd < 0)
		abort();
	close(fd);
	return fd;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct error err = ERROR_NULL;
	struct frame frame;
	size_t n_fds;
	int pair[2], free_fd, r;

	if (size < 2)
		return 0;
	n_fds = data[0] % (MAX_FDS + 1);
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		abort();
	free_fd = lowest_free_fd();
	send_message(pair[0], data + 1, size - 1, n_fds);
	r = frame_recv(pair[1], buffer, &frame, NULL, &err);
	if (r == FRAME_OK)
		check(&frame, n_fds);
	else if (r != -EPROTO || err.code != r || !err.msg[0])
		abort();
	if (lowest_free_fd() != free_fd)
		abort();
	close(pair[0]);
	close(pair[1]);
	return 0;
}
