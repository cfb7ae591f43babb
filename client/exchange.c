/*
 * Everyone sends, with the lock held; what the socket does not take is sent by
 * the reader, in order. Only the reader replaces or closes the socket, and it
 * polls and receives without the lock.
 */
#include "client/exchange.h"
#include "client/call_points.h"
#include "client/connection.h"
#include "proto/point.h"
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Connections that may break one after the other within a second each before
 * the requests under way are given up: one of them may be what breaks them. */
#define MAX_BROKEN 5

/*
 * Send what is unsent, in order. FRAME_OK: all; FRAME_AGAIN: the socket is
 * full. What is below the first unanswered number the broker may forget.
 */
static int flush(struct connection *c, struct error *err)
{
	while (c->calls.first_unsent) {
		struct call *call = c->calls.first_unsent;
		struct frame frame = {.kind = call->kind,
				      .number = call->number,
				      .answered = c->calls.first->number,
				      .is_quiet = call->is_posted,
				      .body = call->body,
				      .body_size = call->body_size,
				      .n_fds = call->fd >= 0,
				      .fds = {call->fd}};
		int r;

		/* Given up: its owner takes it away, when it looks. */
		if (call->is_done && !call_may_be_granted(call)) {
			c->calls.first_unsent = call->next;
			continue;
		}
		r = frame_send(c->sock_fd, &frame, err);
		if (r != FRAME_OK)
			return r;
		call->was_sent = true;
		c->calls.first_unsent = call->next;
		point(call_points[call->kind].sent);
	}
	return FRAME_OK;
}

void exchange_update_poll(struct connection *c)
{
	/* Without a socket, one of those who poll must connect again. */
	bool is_down = c->n_begun > 0 && c->sock_fd < 0 && !c->is_reading;

	poller_set(&c->poller, c->n_begun ? c->sock_fd : -1,
		   c->calls.first_unsent, c->n_landed > 0 || is_down);
}

/* A call has its answer, or its error; or first the error and then, as it was
 * sent again, the answer. */
static void land(struct connection *c, struct call *call)
{
	bool is_first = !call->is_done;

	call->is_done = true;
	if (!call->is_begun) {
		pthread_cond_signal(&call->changed);
		return;
	}
	c->n_landed += is_first;
	exchange_update_poll(c);
}

/* Nobody waits for it, but somebody may want to know. */
static void tell_refusal(const struct call *call, const struct reply *reply)
{
	struct error cause = ERROR_NULL;

	if (!call->post.refused)
		return;
	error_set(&cause, reply->code, "%s", reply->sentence);
	call->post.refused(call->post.data, call->post.number, &cause);
}

void exchange_end_orphan(struct connection *c, struct call *call)
{
	struct answer answer;
	bool is_crowded = false;

	call_take_fds(call, &answer);
	if (reply_decode(call->kind, call->frame.code, call->frame.body,
			 call->frame.body_size, &answer.reply, NULL) == 0) {
		is_crowded = answer.reply.code == -EAGAIN;
		if (answer.reply.code == 0 && message_grants(call->kind))
			c->on_orphan(&answer, c->orphan_data);
		else if (answer.reply.code < 0 && !is_crowded)
			tell_refusal(call, &answer.reply);
		answer_deinit(&answer);
	} else {
		frame_close_fds(&call->frame);
	}
	if (!call->is_posted || !is_crowded) {
		call_give(&c->calls, call);
		return;
	}
	/* Nothing was done, see CALL_AGAIN; nobody else would try again. */
	call->is_done = false;
	call_append(&c->calls, call);
	(void)flush(c, NULL);
}

/* The call of that number, NULL: none. What was posted before it was sent
 * before it too, and is done: a refusal would have come first. */
static struct call *find_answered(struct connection *c, uint64_t number)
{
	struct call *call = c->calls.first;

	while (call && call->number < number) {
		struct call *next = call->next;

		if (call->is_posted) {
			call_detach(&c->calls, call);
			call_give(&c->calls, call);
		}
		call = next;
	}
	return call && call->number == number ? call : NULL;
}

/* A frame that the reader received into its own call's buffer. */
static void deliver(struct connection *c, struct call *mine,
		    struct frame *frame)
{
	struct call *call = find_answered(c, frame->number);

	if (!call) {
		frame_close_fds(frame);
		return;
	}
	if (call != mine) {
		uint8_t *buffer = call->buffer;

		call->buffer = mine->buffer;
		mine->buffer = buffer;
	}
	point(call_points[call->kind].received);
	call->frame = *frame;
	call->error.code = 0;
	call_detach(&c->calls, call);
	if (call->is_orphan) {
		call->is_done = true;
		exchange_end_orphan(c, call);
	} else {
		land(c, call);
	}
}

static void disconnect(struct connection *c)
{
	poller_forget_socket(&c->poller);
	if (c->sock_fd >= 0)
		(void)close(c->sock_fd);
	c->sock_fd = -1;
	/* A connection that lived for a while broke for reasons of its own. */
	if (handshake_now_ms() - c->connected_ms > 1000)
		c->n_broken = 0;
	c->n_broken++;
}

/* Poll and receive once, without the lock; FRAME_AGAIN also if `mine` was
 * interrupted. */
static int wait_frame(struct connection *c, struct call *mine, bool is_full,
		      struct frame *ret, struct error *err)
{
	const struct interrupt interrupt =
		call_interrupt(mine, &c->self.interrupt);
	uint8_t *buffer = mine->buffer;
	/* What is collected does not wait. */
	int wait_ms = mine->is_begun ? 0 : interrupt_slice(&interrupt, -1);

	struct pollfd items[2] = {
		{.fd = c->sock_fd,
		 .events = is_full ? POLLIN | POLLOUT : POLLIN},
		{.fd = c->wake_fd, .events = POLLIN},
	};
	int r;

	pthread_mutex_unlock(&c->lock);
	r = poll(items, 2, wait_ms);
	if (r <= 0 && wait_ms != 0)
		mine->is_interrupted = interrupt_is_asked(&interrupt);
	if (r > 0 && items[1].revents) {
		uint64_t n;

		(void)!read(c->wake_fd, &n, sizeof(n));
	}
	r = frame_recv(items[0].fd, buffer, ret, NULL, err);
	pthread_mutex_lock(&c->lock);
	return r;
}

int exchange_once(struct connection *c, struct call *mine, struct error *err)
{
	struct frame frame;
	int r;

	r = flush(c, err);
	if (r == FRAME_OK || r == FRAME_AGAIN)
		r = wait_frame(c, mine, r == FRAME_AGAIN, &frame, err);
	if (r == FRAME_AGAIN)
		return FRAME_AGAIN;
	if (r == FRAME_OK) {
		c->n_broken = 0;
		deliver(c, mine, &frame);
		return 0;
	}
	disconnect(c);
	if (c->n_broken < MAX_BROKEN)
		return 0;
	c->n_broken = 0;
	if (r == FRAME_EOF)
		return error_set(err, -ECONNRESET,
				 "fsdpd closed the connection %d times in a "
				 "row; its log says why",
				 MAX_BROKEN);
	return r;
}

void exchange_fail_all(struct connection *c, const struct error *err)
{
	for (struct call *call = c->calls.first; call; call = call->next) {
		if (call->is_done || call->is_orphan)
			continue;
		call->error = *err;
		land(c, call);
	}
}

void exchange_send(struct connection *c, struct call *call)
{
	call_append(&c->calls, call);
	/* What is wrong with the socket is for the reader to find out. */
	if (c->sock_fd >= 0 && flush(c, NULL) != FRAME_OK && c->is_reading) {
		uint64_t one = 1;

		(void)!write(c->wake_fd, &one, sizeof(one));
	}
}
