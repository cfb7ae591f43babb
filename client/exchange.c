/*
 * Any thread sends, with the lock held; the reader sends the bytes that the
 * socket did not accept, in order. Only the reader replaces or closes the
 * socket, and it polls without the lock.
 */
#include "client/exchange.h"
#include "client/call_failpoints.h"
#include "client/clock.h"
#include "client/connection.h"
#include "client/own_fd.h"
#include "proto/failpoint.h"
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The maximum number of connections in a row that break within a second each.
 * One of the requests under way may be the cause, so all of them fail then. */
#define MAX_BROKEN 5

/*
 * Send all unsent calls, in order. FRAME_OK: all were sent; FRAME_AGAIN: the
 * socket is full. Each frame contains the lowest unanswered number; the broker
 * may drop its recorded replies to calls below it.
 */
static int flush(struct connection *c, struct error *err)
{
	if (c->calls.first_unsent && !own_fd_is(c->sock_fd, c->self.mark))
		return handshake_refuse_closed(err);
	while (c->calls.first_unsent) {
		struct call *call = c->calls.first_unsent;
		struct frame frame = {.kind = call->kind,
				      .number = call->number,
				      .answered = c->calls.first->number,
				      .is_one_way = call->is_one_way,
				      .body = call->body,
				      .body_size = call->body_size,
				      .n_fds = call->fd >= 0,
				      .fds = {call->fd}};
		int r;

		/* The call was abandoned; the thread that made it removes
		 * it. */
		if (call->is_done && !call_may_change_holds(call) &&
		    !call_must_be_read(call)) {
			c->calls.first_unsent = call->next;
			continue;
		}
		r = frame_send(c->sock_fd, &frame, err);
		if (r != FRAME_OK)
			return r;
		call->was_sent = true;
		c->calls.first_unsent = call->next;
		failpoint(call_failpoints[call->kind].sent);
	}
	return FRAME_OK;
}

void exchange_update_poll(struct connection *c)
{
	/* Without a socket, a thread that polls must reconnect. */
	bool is_down = c->n_begun > 0 && c->sock_fd < 0 && !c->is_reading;

	poller_set(&c->poller, c->n_begun ? c->sock_fd : -1,
		   c->calls.first_unsent, c->n_landed > 0 || is_down);
}

/* Mark a call as done. It has its reply or an error. A call that has an error
 * but was sent may get its reply later; it counts only once. */
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

/* Report a refusal to the function of a one-way request. */
static void report_refusal(const struct call *call, const struct reply *reply)
{
	struct error cause = ERROR_NULL;

	if (!call->one_way.refused)
		return;
	error_set(&cause, reply->code, "%s", reply->sentence);
	call->one_way.refused(call->one_way.data, call->one_way.number, &cause);
}

/* Turn a call whose caller has given up into the request that ends what it has
 * begun. Returns false if there is nothing to end, or no memory. */
static bool become_end(struct call *call, const struct reply *reply)
{
	struct request request = {0};

	if (reply->code < 0)
		return false;
	if (call->kind == MESSAGE_CHANNEL_OPEN) {
		request.kind = MESSAGE_CHANNEL_CLOSE;
		request.channel_close.channel = reply->channel.channel;
		request.channel_close.place = reply->channel.place;
	} else if (call->kind == MESSAGE_BUNDLE_BEGIN) {
		request.kind = MESSAGE_BUNDLE_ABORT;
		request.bundle_abort.bundle = reply->bundle.bundle;
	} else if (call->kind == MESSAGE_COMM_JOIN) {
		request.kind = MESSAGE_COMM_LEAVE;
		request.comm_leave.comm = reply->comm.comm;
	}
	return request.kind && call_become(call, &request) == 0;
}

void exchange_end_orphan(struct connection *c, struct call *call)
{
	struct received received;
	bool is_crowded = false, is_again = false;

	call_take_fds(call, &received);
	if (reply_decode(call->kind, call->frame.code, call->frame.body,
			 call->frame.body_size, &received.reply, NULL) == 0) {
		is_crowded = received.reply.code == -EAGAIN;
		if (received.reply.code == 0 && message_grants(call->kind))
			c->on_orphan(&received, c->orphan_data);
		else if (received.reply.code < 0 && !is_crowded)
			report_refusal(call, &received.reply);
		is_again = become_end(call, &received.reply);
		received_deinit(&received);
	} else {
		frame_close_fds(&call->frame);
	}
	/* The broker has not executed the request (see CALL_AGAIN), and no
	 * thread waits that could repeat it. */
	if (is_crowded && (call->is_one_way || call_is_farewell(call)))
		is_again = true;
	if (!is_again) {
		call_give(&c->calls, call);
		return;
	}
	call->is_done = false;
	call_append(&c->calls, call);
	(void)flush(c, NULL);
}

/* Find the call with that number; NULL: there is none. Earlier one-way requests
 * were executed, since the broker would have sent a refusal before this reply;
 * end them. */
static struct call *find_call(struct connection *c, uint64_t number)
{
	struct call *call = c->calls.first;

	while (call && call->number < number) {
		struct call *next = call->next;

		if (call->is_one_way) {
			call_detach(&c->calls, call);
			call_give(&c->calls, call);
		}
		call = next;
	}
	return call && call->number == number ? call : NULL;
}

/* Deliver a frame that the reader received into the buffer of its own call. */
static void deliver(struct connection *c, struct call *mine,
		    struct frame *frame)
{
	struct call *call = find_call(c, frame->number);

	if (!call) {
		frame_close_fds(frame);
		return;
	}
	if (call != mine) {
		uint8_t *buffer = call->buffer;

		call->buffer = mine->buffer;
		mine->buffer = buffer;
	}
	failpoint(call_failpoints[call->kind].received);
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

void exchange_disconnect(struct connection *c)
{
	poller_forget_socket(&c->poller);
	own_fd_close(c->sock_fd, c->self.mark);
	c->sock_fd = -1;
	/* If a connection lived for a while, its failure does not suggest that
	 * a request is the cause. */
	if (clock_now_ms() - c->connected_ms > 1000)
		c->n_broken = 0;
	c->n_broken++;
}

void exchange_check_socket(struct connection *c)
{
	if (!c->is_reading && c->sock_fd >= 0 &&
	    !own_fd_is(c->sock_fd, c->self.mark))
		exchange_disconnect(c);
}

/* Poll without the lock, and receive once. */
static int wait_frame(struct connection *c, struct call *mine, bool is_full,
		      struct frame *ret, bool *is_cut, struct error *err)
{
	const struct interrupt interrupt =
		call_interrupt(mine, &c->self.interrupt);
	uint8_t *buffer = mine->buffer;
	/* A begun call does not wait. */
	int wait_ms = mine->is_begun ? 0 : interrupt_slice(&interrupt, -1);

	struct pollfd items[2] = {
		{.fd = c->sock_fd,
		 .events = is_full ? POLLIN | POLLOUT : POLLIN},
		{.fd = c->wake_fd, .events = POLLIN},
	};
	int r;

	pthread_mutex_unlock(&c->lock);
	r = poll(items, 2, wait_ms);
	if (r <= 0)
		*is_cut = true;
	if (r > 0 && items[1].revents && own_fd_is(c->wake_fd, c->self.mark)) {
		uint64_t n;

		(void)!read(c->wake_fd, &n, sizeof(n));
	}
	/* The lock is taken first, because no request may be sent after a reply
	 * was read without its descriptors: by it the broker would know that
	 * the reply was received (broker/session/recorded_reply.c). */
	pthread_mutex_lock(&c->lock);
	return frame_recv(items[0].fd, buffer, ret, NULL, err);
}

int exchange_once(struct connection *c, struct call *mine, bool *is_cut,
		  struct error *err)
{
	struct frame frame;
	int r;

	r = flush(c, err);
	if (r == FRAME_OK || r == FRAME_AGAIN)
		r = wait_frame(c, mine, r == FRAME_AGAIN, &frame, is_cut, err);
	if (r == FRAME_AGAIN)
		return FRAME_AGAIN;
	if (r == FRAME_OK) {
		c->n_broken = 0;
		deliver(c, mine, &frame);
		return 0;
	}
	exchange_disconnect(c);
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
	/* Errors of the socket are left to the reader. */
	if (c->sock_fd >= 0 && flush(c, NULL) != FRAME_OK && c->is_reading &&
	    own_fd_is(c->wake_fd, c->self.mark)) {
		uint64_t one = 1;

		(void)!write(c->wake_fd, &one, sizeof(one));
	}
}
