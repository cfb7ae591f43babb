/*
 * fsdp-worker itself (WORKER_PATH), started by a test that acts as the broker
 * at the other end of its link.
 */
#pragma once
#include "collective/job.h"
#include "shm/memfd.h"
#include "tests/lib/check.h"
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static inline void exec_worker(int link_fd, const char *argument,
			       uint32_t n_threads)
{
	char number[16];

	snprintf(number, sizeof(number), "%u", n_threads);
	if (link_fd == WORKER_FD)
		(void)fcntl(WORKER_FD, F_SETFD, 0);
	else if (link_fd >= 0)
		dup2(link_fd, WORKER_FD);
	else
		close(WORKER_FD);
	execl(WORKER_PATH, "fsdp-worker", argument, number, NULL);
	_exit(99);
}

/* Returns our end of its link. */
static inline int worker_start(uint32_t n_threads, pid_t *ret_pid)
{
	const struct timeval patience = {.tv_sec = 20};
	struct job_hello hello = {0};
	int fds[2];

	cr_assert(zero(int, socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC,
				       0, fds)));
	*ret_pid = fork();
	if (*ret_pid == 0)
		exec_worker(fds[1], "--threads", n_threads);
	close(fds[1]);
	setsockopt(fds[0], SOL_SOCKET, SO_RCVTIMEO, &patience,
		   sizeof(patience));
	cr_assert(
		eq(sz, recv(fds[0], &hello, sizeof(hello), 0), sizeof(hello)));
	cr_assert(eq(u32, hello.kind, JOB_HELLO));
	cr_assert(eq(u32, hello.protocol, JOB_PROTOCOL));
	cr_assert(eq(u32, hello.n_threads, n_threads));
	cr_assert(eq(str, hello.version, FSDP_VERSION));
	return fds[0];
}

static inline void send_with_fd(int sock_fd, const void *message, size_t size,
				int fd)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control = {0};
	struct iovec iov = {(void *)message, size};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

	if (fd >= 0) {
		msg.msg_control = &control;
		msg.msg_controllen = sizeof(control);
		control.align.cmsg_level = SOL_SOCKET;
		control.align.cmsg_type = SCM_RIGHTS;
		control.align.cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(&control.align), &fd, sizeof(fd));
	}
	cr_assert(eq(sz, sendmsg(sock_fd, &msg, MSG_NOSIGNAL), size));
}

static inline void send_plan_with(int sock_fd, const struct job_plan *plan,
				  const struct plan_entry *entries)
{
	size_t size = plan->n_entries * sizeof(*entries);
	int fd;

	cr_assert(zero(int, memfd_create_sealed("plan", size, MEMFD_SEAL_SIZE,
						&fd, NULL)));
	cr_assert(eq(sz, write(fd, entries, size), size));
	send_with_fd(sock_fd, plan, sizeof(*plan), fd);
	close(fd);
}

static inline struct job_done receive_done_of(int sock_fd)
{
	struct job_done done = {0};

	cr_assert(eq(sz, recv(sock_fd, &done, sizeof(done), 0), sizeof(done)));
	cr_assert(eq(u32, done.kind, JOB_DONE));
	return done;
}
