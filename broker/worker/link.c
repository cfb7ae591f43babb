/*
 * Messages over SOCK_SEQPACKET.
 *
 * The kernel installs fds in this process before anybody has looked at the
 * message, and there can be more of them than expected, since the padding of
 * the control buffer has room. So all are taken first, and those that nobody
 * expects are closed.
 */
#include "broker/worker/link.h"
#include "proto/error.h"
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MAX_FDS (CMSG_SPACE(sizeof(int)) / sizeof(int))

union control {
	struct cmsghdr align;
	char bytes[CMSG_SPACE(sizeof(int))];
};

/* The size and the number of fds of each kind of message that the worker
 * receives. */
static const struct {
	size_t size;
	size_t n_fds;
} kinds[] = {
	[JOB_CHUNK] = {sizeof(struct job_chunk), 1},
	[JOB_FORGET_CHUNK] = {sizeof(struct job_chunk), 0},
	[JOB_PLAN] = {sizeof(struct job_plan), 1},
	[JOB_FORGET_PLAN] = {sizeof(struct job_plan), 0},
	[JOB_GATHER] = {sizeof(struct job), 0},
	[JOB_REDUCE] = {sizeof(struct job), 0},
	[JOB_COMM] = {sizeof(struct job_comm), 0},
	[JOB_FORGET_COMM] = {sizeof(struct job_forget_comm), 0},
	[JOB_COMPARE] = {sizeof(struct job_compare), 0},
	[JOB_DEVICE_GATHER] = {sizeof(struct job_device), 0},
	[JOB_DEVICE_REDUCE] = {sizeof(struct job_device), 0},
	[JOB_TIMELINES] = {sizeof(struct job_timelines), 1},
};
#define N_KINDS (sizeof(kinds) / sizeof(kinds[0]))

bool link_is_socket(int fd)
{
	int type = 0, domain = 0;
	socklen_t size = sizeof(int);

	return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 &&
	       getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 &&
	       type == SOCK_SEQPACKET && domain == AF_UNIX;
}

static size_t take_fds(struct msghdr *msg, int *fds)
{
	size_t n = 0;

	for (struct cmsghdr *cmsg = CMSG_FIRSTHDR(msg); cmsg;
	     cmsg = CMSG_NXTHDR(msg, cmsg)) {
		size_t size = cmsg->cmsg_len - CMSG_LEN(0);

		if (cmsg->cmsg_level != SOL_SOCKET ||
		    cmsg->cmsg_type != SCM_RIGHTS)
			continue;
		memcpy(fds + n, CMSG_DATA(cmsg), size);
		n += size / sizeof(int);
	}
	return n;
}

static bool is_message(const struct msghdr *msg, ssize_t size, uint32_t kind,
		       size_t n_fds)
{
	return !(msg->msg_flags & (MSG_TRUNC | MSG_CTRUNC)) &&
	       (size_t)size >= sizeof(kind) && kind < N_KINDS &&
	       (size_t)size == kinds[kind].size && n_fds == kinds[kind].n_fds;
}

int link_receive(int sock_fd, bool may_wait, union link_message *ret,
		 int *ret_fd, struct error *err)
{
	int flags = MSG_CMSG_CLOEXEC | (may_wait ? 0 : MSG_DONTWAIT);
	union control control;
	struct iovec iov = {.iov_base = ret, .iov_len = sizeof(*ret)};
	struct msghdr msg;
	int fds[MAX_FDS];
	ssize_t size;
	size_t n_fds;

	ret->kind = 0;
	do {
		msg = (struct msghdr){
			.msg_iov = &iov,
			.msg_iovlen = 1,
			.msg_control = &control,
			.msg_controllen = sizeof(control),
		};
		size = recvmsg(sock_fd, &msg, flags);
	} while (size < 0 && errno == EINTR);
	if (size < 0 && errno == EAGAIN)
		return LINK_EMPTY;
	if (size == 0 || (size < 0 && errno == ECONNRESET))
		return LINK_CLOSED;
	if (size < 0)
		return error_errno(err, -errno,
				   "cannot receive from the broker");
	n_fds = take_fds(&msg, fds);
	if (!is_message(&msg, size, ret->kind, n_fds)) {
		while (n_fds > 0)
			close(fds[--n_fds]);
		return error_set(err, -EPROTO,
				 "a message of %zd bytes from the broker is "
				 "not one of job.h",
				 size);
	}
	*ret_fd = n_fds ? fds[0] : -1;
	return LINK_OK;
}

static int send_message(int sock_fd, const void *message, size_t size,
			struct error *err)
{
	ssize_t n;

	do {
		n = send(sock_fd, message, size, MSG_NOSIGNAL);
	} while (n < 0 && errno == EINTR);
	if (n < 0 && (errno == EPIPE || errno == ECONNRESET))
		return LINK_CLOSED;
	if (n < 0)
		return error_errno(err, -errno, "cannot send to the broker");
	return LINK_OK;
}

int link_send_hello(int sock_fd, const struct job_hello *hello,
		    struct error *err)
{
	return send_message(sock_fd, hello, sizeof(*hello), err);
}

void link_send_done(int sock_fd, const struct job_done *done)
{
	(void)send_message(sock_fd, done, sizeof(*done), NULL);
}
