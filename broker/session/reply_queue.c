#include "broker/session/reply_queue.h"
#include "broker/base/account.h"
#include "proto/error.h"
#include "proto/failpoint.h"
#include "proto/frame.h"
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

/* The first delay before the check whether the client has read descriptors, and
 * the limit up to which it doubles. */
#define FIRST_RETRY_MS 1
#define LAST_RETRY_MS  64
/* The charge of a descriptor in a queued reply. */
#define FD_COST 4096

struct queued_reply {
	struct queued_reply *next;
	uint64_t charged;
	struct frame frame; /* its fds are owned */
	uint8_t body[];
};

/* Returns whether this reply must wait until the client has read those sent
 * before. */
static bool must_wait(const struct reply_queue *queue,
		      const struct frame *frame)
{
	return frame->n_fds > 0 && frame_has_unread(queue->sock_fd);
}

bool reply_queue_is_empty(const struct reply_queue *queue)
{
	return !queue->first;
}

bool reply_queue_waits_for_reader(const struct reply_queue *queue)
{
	return queue->first &&
	       (queue->is_short || must_wait(queue, &queue->first->frame));
}

bool reply_queue_is_read(const struct reply_queue *queue)
{
	return !queue->first && !frame_has_unread(queue->sock_fd);
}

bool reply_queue_has_unread_fds(const struct reply_queue *queue)
{
	return queue->has_sent_fds && frame_has_unread(queue->sock_fd);
}

static void drop(struct reply_queue *queue, struct queued_reply *reply)
{
	frame_close_fds(&reply->frame);
	account_refund(queue->account, ACCOUNT_QUEUE, reply->charged);
	free(reply);
}

static void drop_first(struct reply_queue *queue)
{
	struct queued_reply *reply = queue->first;

	assert(reply && queue->last && !queue->last->next);
	queue->first = reply->next;
	if (!queue->first)
		queue->last = NULL;
	drop(queue, reply);
}

void reply_queue_deinit(struct reply_queue *queue)
{
	while (queue->first)
		drop_first(queue);
	retry_stop(&queue->retry);
}

static int plan_retry(struct reply_queue *queue, struct error *err)
{
	return retry_plan(&queue->retry, FIRST_RETRY_MS, LAST_RETRY_MS, err);
}

static int copy_fds(struct frame *to, const struct frame *from)
{
	to->n_fds = 0;
	for (uint16_t i = 0; i < from->n_fds; i++) {
		to->fds[i] = fcntl(from->fds[i], F_DUPFD_CLOEXEC, 3);
		if (to->fds[i] < 0)
			return -errno;
		to->n_fds++;
	}
	return 0;
}

static int enqueue(struct reply_queue *queue, const struct frame *frame,
		   struct error *err)
{
	uint64_t size = sizeof(struct queued_reply) + frame->body_size;
	uint64_t charge = size + (uint64_t)frame->n_fds * FD_COST;
	struct queued_reply *reply;
	int r;

	r = account_charge(queue->accounts, queue->account, ACCOUNT_QUEUE,
			   charge, err);
	if (r < 0)
		return r;
	reply = malloc(size);
	if (!reply) {
		account_refund(queue->account, ACCOUNT_QUEUE, charge);
		return error_nomem(err, "a queued reply");
	}
	reply->next = NULL;
	reply->charged = charge;
	reply->frame = *frame;
	if (frame->body_size > 0)
		memcpy(reply->body, frame->body, frame->body_size);
	reply->frame.body = reply->body;
	r = copy_fds(&reply->frame, frame);
	if (r < 0) {
		drop(queue, reply);
		return error_errno(err, r, "cannot queue descriptors");
	}
	assert(!queue->first == !queue->last);
	if (queue->last)
		queue->last->next = reply;
	else
		queue->first = reply;
	queue->last = reply;
	return 0;
}

/* Sends the first reply, or one that need not be queued. */
static int send_first(struct reply_queue *queue, const struct frame *frame,
		      struct error *err)
{
	int r;

	failpoint("peer.send");
	r = frame_send(queue->sock_fd, frame, err);
	queue->is_short = r == -ETOOMANYREFS;
	queue->has_sent_fds |= r == FRAME_OK && frame->n_fds > 0;
	return queue->is_short ? FRAME_AGAIN : r;
}

int reply_queue_send(struct reply_queue *queue, const struct frame *frame,
		     struct error *err)
{
	int r;

	if (!queue->first && !must_wait(queue, frame)) {
		r = send_first(queue, frame, err);
		if (r != FRAME_AGAIN)
			return r;
	}
	r = enqueue(queue, frame, err);
	if (r < 0)
		return r;
	if (reply_queue_waits_for_reader(queue))
		return plan_retry(queue, err);
	return FRAME_OK;
}

int reply_queue_flush(struct reply_queue *queue, struct error *err)
{
	int r;

	while (queue->first) {
		if (must_wait(queue, &queue->first->frame))
			return plan_retry(queue, err);
		r = send_first(queue, &queue->first->frame, err);
		if (r == FRAME_AGAIN)
			return queue->is_short ? plan_retry(queue, err)
					       : FRAME_OK;
		if (r != FRAME_OK)
			return r;
		drop_first(queue);
		retry_reset(&queue->retry);
	}
	return FRAME_OK;
}
