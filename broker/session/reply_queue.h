/*
 * Reply queues: the replies that the socket of one connection has not taken
 * yet.
 *
 * A reply is sent at once if the socket takes it and no other reply is queued
 * before it. A reply with fds is sent only after the client has read everything
 * that was sent before (SIOCOUTQ), since unread fds count against the broker.
 * The kernel reports no such event, so a deadline checks it at growing
 * intervals. If the kernel refuses the fds, because all clients together have
 * too many that they have not read, the reply waits likewise. The bytes and
 * descriptors in the queue are charged to the client's account.
 */
#pragma once
#include "broker/base/retry.h"
#include <stdbool.h>
#include <stdint.h>

struct account;
struct accounts;
struct error;
struct frame;
struct queued_reply; /* reply_queue.c */

struct reply_queue {
	/* Borrowed: the socket that the replies are sent to, and the account
	 * that is charged for those that wait. */
	int sock_fd;
	const struct accounts *accounts;
	struct account *account;
	/* Calls reply_queue_flush() when the client may have read. The owner
	 * sets its deadlines and its function. */
	struct retry retry;
	struct queued_reply *first, *last;
	bool is_short; /* the kernel refused the fds of the first reply */
	bool has_sent_fds;
};

/*
 * Send the frame, or queue a copy of it with duplicates of its fds. Returns
 * FRAME_OK, FRAME_EOF if the client is gone, or -EDQUOT if the account may not
 * queue more.
 */
int reply_queue_send(struct reply_queue *queue, const struct frame *frame,
		     struct error *err);

/* Send the queued replies that the socket takes and that need not wait for the
 * client. Returns FRAME_OK, also if replies are left, or FRAME_EOF if the
 * client is gone. */
int reply_queue_flush(struct reply_queue *queue, struct error *err);

/* Free the replies that are left, and stop the deadline. */
void reply_queue_deinit(struct reply_queue *queue);

bool reply_queue_is_empty(const struct reply_queue *queue);

/* Returns whether the next reply waits until the client, or another one, has
 * read, and not for space in the socket. */
bool reply_queue_waits_for_reader(const struct reply_queue *queue);

/* Returns whether the client has read every reply, and no reply is queued. */
bool reply_queue_is_read(const struct reply_queue *queue);

/* Returns whether the client may have fds to read. */
bool reply_queue_has_unread_fds(const struct reply_queue *queue);
