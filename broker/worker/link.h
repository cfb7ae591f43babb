/*
 * The socket to the broker. It carries whole messages of job.h, with at most
 * one fd each.
 *
 * One thread receives; any thread may send.
 */
#pragma once
#include "collective/job.h"

struct error;

union link_message {
	/* enum job_message_kind; the first word of the message */
	uint32_t kind;
	struct job_chunk chunk;
	struct job_plan plan;
	struct job job;
	struct job_comm comm;
	struct job_forget_comm forget_comm;
	struct job_timelines timelines;
	struct job_compare compare;
	struct job_device device;
};

enum link_outcome {
	LINK_OK = 0,
	LINK_CLOSED = 1, /* the broker has closed it */
	LINK_EMPTY = 2,  /* there is no message yet */
};

/* Is `fd` a socket of the kind that job.h describes? */
bool link_is_socket(int fd);

/*
 * Receive the next message; with `may_wait`, wait for it. The caller owns
 * `ret_fd`, which is -1 if messages of this kind bring none. -EPROTO: the
 * message has a wrong size or wrong fds; all fds that came with it are closed.
 */
int link_receive(int sock_fd, bool may_wait, union link_message *ret,
		 int *ret_fd, struct error *err);

/* Waits until there is room. Returns LINK_CLOSED if the broker has closed
 * it. */
int link_send_hello(int sock_fd, const struct job_hello *hello,
		    struct error *err);
/* Ignores failures. */
void link_send_done(int sock_fd, const struct job_done *done);
