/*
 * Reply queues: the replies to one connection that its socket has not taken.
 *
 * A reply is sent at once if the socket takes it and nothing is queued before
 * it. A reply with fds is sent only after the client has read everything that
 * was sent before (SIOCOUTQ), since unread fds count against the broker. The
 * kernel reports no such event, so a deadline checks it at growing intervals.
 * The bytes and descriptors in the queue are charged to the client's account.
 */
#pragma once
#include "broker/base/deadline.h"
#include <stdbool.h>
#include <stdint.h>

struct account;
struct accounts;
struct error;
struct frame;
struct queued_reply; /* reply_queue.c */

struct reply_queue {
	/* Borrowed. Replies go to the socket, and the account is charged for
	 * those that wait. */
	int sock_fd;
	const struct accounts *accounts;
	struct account *account;
	struct deadlines *deadlines;
	/* Called when it is time for reply_queue_flush(). */
	deadline_fn *on_retry;
	void *data;
	struct queued_reply *first, *last;
	/* The deadline that checks whether the client has read. */
	uint32_t retry_position;
	uint32_t retry_ms;
};

/*
 * Send the frame, or queue a copy of it with duplicates of its fds. FRAME_OK,
 * or FRAME_EOF if the client is gone. -EDQUOT: the account's queues are full.
 */
int reply_queue_send(struct reply_queue *queue, const struct frame *frame,
		     struct error *err);

/* Send what the socket takes and the client has room for. FRAME_OK, also if
 * replies are left, or FRAME_EOF if the client is gone. */
int reply_queue_flush(struct reply_queue *queue, struct error *err);

/* Free the replies that are left, and stop the deadline. */
void reply_queue_deinit(struct reply_queue *queue);

bool reply_queue_is_empty(const struct reply_queue *queue);

/* Is the next reply waiting for the client to read, not for the socket? */
bool reply_queue_waits_for_reader(const struct reply_queue *queue);

/* Has the client read every reply, queued or sent? */
bool reply_queue_is_read(const struct reply_queue *queue);
