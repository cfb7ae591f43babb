/*
 * The socket to the broker: messages of job.h, whole, with at most one fd.
 *
 * One thread receives; any may send.
 */
#pragma once
#include "collective/job.h"

struct error;

union link_message {
	uint32_t kind; /* enum job_message_kind: the message begins with it */
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
	LINK_CLOSED = 1, /* the broker is gone */
	LINK_EMPTY = 2,  /* nothing is there to be received */
};

/* Is `fd` a socket as job.h has it? */
bool link_is_socket(int fd);

/*
 * The next message; `may_wait`: wait for it. `ret_fd` is the caller's; -1 where
 * the kind brings none. -EPROTO: not a message of the right size with the right
 * fds; all that came with it is closed.
 */
int link_receive(int sock_fd, bool may_wait, union link_message *ret,
		 int *ret_fd, struct error *err);

/* Waits for room. LINK_CLOSED. */
int link_send_hello(int sock_fd, const struct job_hello *hello,
		    struct error *err);
int link_send_done(int sock_fd, const struct job_done *done, struct error *err);
