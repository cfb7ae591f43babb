/*
 * Calls, the reader among their threads, and reconnecting.
 *
 * Every call has a receive buffer of its own. The reader receives into its
 * own call's; a frame for another call is delivered by swapping the buffers,
 * so receiving needs no memory and no copy.
 *
 * Only the reader replaces or closes the socket, and it polls and receives
 * without the lock. Everyone sends, with the lock held; what the socket does
 * not take is sent by the reader, in order.
 */
#include "client/connection.h"
#include "client/call_points.h"
#include "proto/point.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

/* Connections that may break one after the other within a second each before
 * the requests under way are given up: one of them may be what breaks them. */
#define MAX_BROKEN 5
/* Posted requests whose answers were not read. A few of the broker's window of
 * answers: one that finds it full is sent again, behind what was asked later.
 */
#define MAX_POSTED 16
/* Times that a request is sent again because others took its room. */
#define MAX_CROWDED          1000
#define PAUSE_MAX_MS         50
#define RECONNECT_DEFAULT_MS 10000

struct call {
	uint16_t kind;
	uint64_t number;
	uint8_t *body; /* owned */
	uint32_t body_size;
	int fd;             /* owned; travels along; -1: none */
	uint8_t *buffer;    /* owned, FRAME_MAX_SIZE */
	struct frame frame; /* the answer, lies in `buffer` */
	pthread_cond_t changed;
	bool was_sent;  /* at least once: it may have been done */
	bool is_done;   /* `frame`, or `error`, is there */
	bool is_orphan; /* its caller gave up, or never waited */
	bool is_posted; /* orphan from birth: must be done */
	bool is_begun;  /* to be collected: no thread waits for it */
	bool is_interrupted;
	struct post post;
	struct error error;
	struct call *next, *prev;
};

void answer_deinit(struct answer *answer)
{
	for (uint16_t i = 0; i < answer->n_fds; i++)
		if (answer->fds[i] >= 0)
			(void)close(answer->fds[i]);
	answer->n_fds = 0;
	reply_deinit(&answer->reply);
}

/* --- calls --------------------------------------------------------------- */

/* May the broker have given, or be about to give, us something for it? */
static bool may_be_granted(const struct call *call)
{
	return call->was_sent && message_grants(call->kind);
}

/* May the caller's function end the wait for its answer? Not if what we hold
 * must change as the broker has changed it. */
static bool may_be_cut(const struct call *call)
{
	switch (call->kind) {
	case MESSAGE_GOODBYE:
	case MESSAGE_RELEASE:
	case MESSAGE_COMM_LEAVE:
	case MESSAGE_UNSHARD:
	case MESSAGE_RESHARD:
	case MESSAGE_REDUCE:
	case MESSAGE_COMMIT:
		return false;
	default:
		return true;
	}
}

static struct interrupt interrupt_of(const struct connection *c,
				     const struct call *call)
{
	return may_be_cut(call) ? c->self.interrupt : (struct interrupt){0};
}

/* What was to be sent. */
static void call_clear(struct call *call)
{
	if (call->fd >= 0)
		(void)close(call->fd);
	call->fd = -1;
	free(call->body);
	call->body = NULL;
}

static void call_free(struct call *call)
{
	/* `changed` is not destroyed: glibc would wait for its waiters, and in
	 * a forked child those never come. It holds nothing. */
	call_clear(call);
	free(call->buffer);
	free(call);
}

static struct call *call_new(void)
{
	struct call *call = calloc(1, sizeof(*call));

	if (!call)
		return NULL;
	pthread_cond_init(&call->changed, NULL);
	call->fd = -1;
	call->buffer = malloc(FRAME_MAX_SIZE);
	if (call->buffer)
		return call;
	call_free(call);
	return NULL;
}

static struct call *call_take(struct connection *c)
{
	struct call *call = c->idle;

	if (!call)
		return call_new();
	c->idle = call->next;
	call->next = NULL;
	return call;
}

static void call_give(struct connection *c, struct call *call)
{
	call_clear(call);
	call->was_sent = call->is_done = false;
	c->n_posted -= call->is_posted;
	call->is_orphan = call->is_posted = false;
	call->is_begun = call->is_interrupted = false;
	call->post = (struct post){0};
	call->error.code = 0;
	call->prev = NULL;
	call->next = c->idle;
	c->idle = call;
}

static void call_append(struct connection *c, struct call *call)
{
	call->number = c->next_number++;
	call->prev = c->last;
	call->next = NULL;
	if (c->last)
		c->last->next = call;
	else
		c->first = call;
	c->last = call;
	if (!c->first_unsent)
		c->first_unsent = call;
}

static void call_detach(struct connection *c, struct call *call)
{
	if (c->first_unsent == call)
		c->first_unsent = call->next;
	if (call->prev)
		call->prev->next = call->next;
	else
		c->first = call->next;
	if (call->next)
		call->next->prev = call->prev;
	else
		c->last = call->prev;
	call->next = call->prev = NULL;
}

/* --- sending and receiving (lock held unless said) ----------------------- */

/*
 * Send what is unsent, in order. FRAME_OK: all; FRAME_AGAIN: the socket is
 * full. What is below the first unanswered number the broker may forget.
 */
static int flush(struct connection *c, struct error *err)
{
	while (c->first_unsent) {
		struct call *call = c->first_unsent;
		struct frame frame = {.kind = call->kind,
				      .number = call->number,
				      .answered = c->first->number,
				      .is_quiet = call->is_posted,
				      .body = call->body,
				      .body_size = call->body_size,
				      .n_fds = call->fd >= 0,
				      .fds = {call->fd}};
		int r;

		/* Given up: its owner takes it away, when it looks. */
		if (call->is_done && !may_be_granted(call)) {
			c->first_unsent = call->next;
			continue;
		}
		r = frame_send(c->sock_fd, &frame, err);
		if (r != FRAME_OK)
			return r;
		call->was_sent = true;
		c->first_unsent = call->next;
		point(call_points[call->kind].sent);
	}
	return FRAME_OK;
}

/* What is begun, and landed, or sent, or the socket has changed. */
static void poll_update(struct connection *c)
{
	/* Without a socket, one of those who poll must connect again. */
	bool is_down = c->n_begun > 0 && c->sock_fd < 0 && !c->is_reading;

	poller_set(&c->poller, c->n_begun ? c->sock_fd : -1, c->first_unsent,
		   c->n_landed > 0 || is_down);
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
	poll_update(c);
}

static void take_fds(const struct call *call, struct answer *ret)
{
	ret->n_fds = call->frame.n_fds;
	memcpy(ret->fds, call->frame.fds, sizeof(ret->fds));
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

static void handle_orphan(struct connection *c, struct call *call)
{
	struct answer answer;
	bool is_crowded = false;

	take_fds(call, &answer);
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
		call_give(c, call);
		return;
	}
	/* Nothing was done, see CALL_AGAIN; nobody else would try again. */
	call->is_done = false;
	call_append(c, call);
	(void)flush(c, NULL);
}

/* The call of that number, NULL: none. What was posted before it was sent
 * before it too, and is done: a refusal would have come first. */
static struct call *find_answered(struct connection *c, uint64_t number)
{
	struct call *call = c->first;

	while (call && call->number < number) {
		struct call *next = call->next;

		if (call->is_posted) {
			call_detach(c, call);
			call_give(c, call);
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
	call_detach(c, call);
	if (call->is_orphan) {
		call->is_done = true;
		handle_orphan(c, call);
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
	const struct interrupt interrupt = interrupt_of(c, mine);
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

/* One round of the reader on a connection. Negative: give up what is under
 * way; FRAME_AGAIN: nothing came. */
static int exchange(struct connection *c, struct call *mine, struct error *err)
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

/* --- reconnecting -------------------------------------------------------- */

static void pause_ms(int64_t ms)
{
	struct timespec time = {.tv_sec = ms / 1000,
				.tv_nsec = ms % 1000 * 1000000};

	(void)nanosleep(&time, NULL);
}

/* Try with growing pauses. Without the lock: nothing here changes meanwhile. */
static int handshake_retry(const struct connection *c, const struct call *mine,
			   struct welcome *ret, struct error *err)
{
	struct introduction self = c->self;
	int64_t deadline_ms = handshake_now_ms() + c->reconnect_ms;
	int64_t wait_ms = 1, asked_ms = 0;

	self.interrupt = interrupt_of(c, mine);
	for (;;) {
		int r = handshake_try(&self, deadline_ms, ret, err);

		if (r <= 0)
			return r;
		if (handshake_now_ms() + wait_ms > deadline_ms)
			return error_wrap(err, err->code,
					  "fsdpd did not come back within "
					  "%d ms",
					  c->reconnect_ms);
		r = interrupt_sleep(&self.interrupt, wait_ms * 1000000,
				    &asked_ms, err);
		if (r < 0)
			return r;
		wait_ms =
			wait_ms * 2 < PAUSE_MAX_MS ? wait_ms * 2 : PAUSE_MAX_MS;
	}
}

static void connected(struct connection *c, int sock_fd)
{
	c->sock_fd = sock_fd;
	c->connected_ms = handshake_now_ms();
	c->first_unsent = c->first;
}

static uint64_t table_epoch(const struct table *table)
{
	return atomic_load_explicit(&table->header->epoch,
				    memory_order_acquire);
}

static int reconnect(struct connection *c, struct call *mine, struct error *err)
{
	struct welcome welcome;
	int r;

	if (c->lost.code < 0)
		return error_set(err, c->lost.code, "%s", c->lost.msg);
	pthread_mutex_unlock(&c->lock);
	r = handshake_retry(c, mine, &welcome, err);
	pthread_mutex_lock(&c->lock);
	if (r == 0) {
		/* If it has moved on since the hello, EOF will tell. */
		atomic_store_explicit(&c->table_epoch, table_epoch(c->table),
				      memory_order_relaxed);
		connected(c, welcome.sock_fd);
	} else if (r == -EINTR) {
		/* Others may go on trying. */
		mine->is_interrupted = true;
		r = 0;
	} else if (err->code == -ESTALE) {
		c->lost = *err;
	}
	return r;
}

/* Everyone who waits gets the error; their threads take the calls away. */
static void fail_all(struct connection *c, const struct error *err)
{
	for (struct call *call = c->first; call; call = call->next) {
		if (call->is_done || call->is_orphan)
			continue;
		call->error = *err;
		land(c, call);
	}
}

/* --- the reader ---------------------------------------------------------- */

/* As long as nothing ends it, or, of one that is collected, as long as frames
 * come. */
static void lead(struct connection *c, struct call *mine)
{
	struct error err = ERROR_NULL;
	int r = 0;

	c->is_reading = true;
	mine->is_interrupted = false;
	while (!mine->is_done && !mine->is_interrupted &&
	       !(r == FRAME_AGAIN && mine->is_begun)) {
		r = c->sock_fd >= 0 ? exchange(c, mine, &err)
				    : reconnect(c, mine, &err);
		if (r < 0)
			fail_all(c, &err);
	}
	c->is_reading = false;
	for (struct call *call = c->first; call; call = call->next) {
		if (call->is_done || call->is_orphan || call->is_begun ||
		    call == mine)
			continue;
		pthread_cond_signal(&call->changed);
		break;
	}
	poll_update(c);
}

/* Somebody else reads. Who stops reading wakes one of those who wait, which may
 * leave at once: whatever its kind, each looks again after a while. */
static void follow(struct connection *c, struct call *mine)
{
	const struct interrupt *interrupt = &c->self.interrupt;
	struct timespec until;

	if (!interrupt->fn) {
		pthread_cond_wait(&mine->changed, &c->lock);
		return;
	}
	(void)clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_nsec += INTERRUPT_SLICE_MS * 1000000L;
	until.tv_sec += until.tv_nsec / 1000000000;
	until.tv_nsec %= 1000000000;
	if (pthread_cond_clockwait(&mine->changed, &c->lock, CLOCK_MONOTONIC,
				   &until) != ETIMEDOUT ||
	    !may_be_cut(mine))
		return;
	pthread_mutex_unlock(&c->lock);
	mine->is_interrupted = interrupt_is_asked(interrupt);
	pthread_mutex_lock(&c->lock);
}

static void send_call(struct connection *c, struct call *call)
{
	call_append(c, call);
	/* What is wrong with the socket is for the reader to find out. */
	if (c->sock_fd >= 0 && flush(c, NULL) != FRAME_OK && c->is_reading) {
		uint64_t one = 1;

		(void)!write(c->wake_fd, &one, sizeof(one));
	}
}

/* It has failed: it is given back, or left as an orphan, since what it may have
 * been granted must not stay with us for ever. */
static int give_up(struct connection *c, struct call *call, struct error *err)
{
	int r = error_set(err, call->error.code, "%s", call->error.msg);

	call->is_begun = false;
	if (may_be_granted(call) && !c->lost.code) {
		call->is_orphan = true;
	} else {
		call_detach(c, call);
		call_give(c, call);
	}
	return r;
}

/* Send and wait. On failure the call is no more. */
static int run(struct connection *c, struct call *call, struct error *err)
{
	send_call(c, call);
	while (!call->is_done && !call->is_interrupted) {
		if (c->is_reading)
			follow(c, call);
		else
			lead(c, call);
	}
	if (!call->is_done)
		interrupt_refuse(&call->error);
	return call->error.code ? give_up(c, call, err) : 0;
}

/* The broker cannot remember more answers of this session now: many threads
 * asked at once. Nothing was done. */
#define CALL_AGAIN 1

static int decode(const struct call *call, struct answer *ret,
		  struct error *err)
{
	struct answer answer;
	int r;

	take_fds(call, &answer);
	if (call->frame.kind != call->kind)
		r = error_set(err, -EPROTO, "fsdpd answered a %s with a %s",
			      message_kind_name(call->kind),
			      message_kind_name(call->frame.kind));
	else
		r = reply_decode(call->kind, call->frame.code, call->frame.body,
				 call->frame.body_size, &answer.reply, err);
	if (r < 0) {
		struct frame frame = call->frame;

		frame_close_fds(&frame);
		return r;
	}
	r = answer.reply.code;
	if (r < 0) {
		error_set(err, r, "%s", answer.reply.sentence);
		answer_deinit(&answer);
		return r == -EAGAIN ? CALL_AGAIN : r;
	}
	*ret = answer;
	return 0;
}

/* Takes the lock; with it held on success. `fd` is taken too, then. */
static int begin_call(struct connection *c, const struct request *request,
		      int fd, struct call **ret, struct error *err)
{
	struct call *call;
	uint8_t *body;
	size_t size;
	int r;

	r = request_encode(request, &body, &size, err);
	if (r < 0)
		return r;
	pthread_mutex_lock(&c->lock);
	call = call_take(c);
	if (!call) {
		pthread_mutex_unlock(&c->lock);
		free(body);
		return error_set(err, -ENOMEM, "no memory for a request");
	}
	call->kind = request->kind;
	call->fd = fd;
	call->body = body;
	call->body_size = (uint32_t)size;
	*ret = call;
	return 0;
}

static int call_once(struct connection *c, const struct request *request,
		     int fd, struct answer *ret, struct error *err)
{
	/* The call may outlive its caller. */
	int own_fd = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 3);
	struct call *call;
	int r;

	if (fd >= 0 && own_fd < 0)
		return error_errno(err, -errno, "duplicate a descriptor");
	r = begin_call(c, request, own_fd, &call, err);
	if (r < 0 && own_fd >= 0)
		(void)close(own_fd);
	if (r < 0)
		return r;
	r = run(c, call, err);
	pthread_mutex_unlock(&c->lock);
	if (r < 0)
		return r;
	r = decode(call, ret, err);
	pthread_mutex_lock(&c->lock);
	call_give(c, call);
	pthread_mutex_unlock(&c->lock);
	return r;
}

int connection_call(struct connection *c, const struct request *request, int fd,
		    struct answer *ret, struct error *err)
{
	/* Having read this answer we have read those before it, which makes
	 * room; only other threads can have taken it again. */
	for (int i = 0; i < MAX_CROWDED; i++) {
		int r = call_once(c, request, fd, ret, err);

		if (r != CALL_AGAIN)
			return r;
		pause_ms(1);
	}
	return error_set(err, -EAGAIN,
			 "too many threads ask fsdpd at once on one "
			 "connection");
}

/* --- begun, not waited for ----------------------------------------------- */

int connection_begin(struct connection *c, const struct request *request,
		     struct call **ret, struct error *err)
{
	struct call *call;
	int r = begin_call(c, request, -1, &call, err);

	if (r < 0)
		return r;
	call->is_begun = true;
	c->n_begun++;
	send_call(c, call);
	poll_update(c);
	pthread_mutex_unlock(&c->lock);
	*ret = call;
	return 0;
}

/* Its answer is there: not to be had for now, or to be given. */
static int finish(struct connection *c, struct call *call, struct answer *ret,
		  struct error *err)
{
	int r;

	if (call->error.code)
		return give_up(c, call, err);
	r = decode(call, ret, err);
	if (r != CALL_AGAIN) {
		call_give(c, call);
		return r;
	}
	call->is_done = false;
	c->n_begun++;
	send_call(c, call);
	return CONNECTION_PENDING;
}

int connection_collect(struct connection *c, struct call *call,
		       struct answer *ret, struct error *err)
{
	int r = CONNECTION_PENDING;

	pthread_mutex_lock(&c->lock);
	if (!call->is_done && !c->is_reading)
		lead(c, call);
	if (call->is_done) {
		c->n_landed--;
		c->n_begun--;
		r = finish(c, call, ret, err);
	}
	poll_update(c);
	pthread_mutex_unlock(&c->lock);
	return r;
}

void connection_abandon(struct connection *c, struct call *call)
{
	pthread_mutex_lock(&c->lock);
	c->n_begun--;
	if (!call->is_done) {
		call->error = (struct error){.code = -ECANCELED};
		(void)give_up(c, call, NULL);
	} else if (call->error.code) {
		c->n_landed--;
		(void)give_up(c, call, NULL);
	} else {
		c->n_landed--;
		handle_orphan(c, call);
	}
	poll_update(c);
	pthread_mutex_unlock(&c->lock);
}

int connection_poll_fd(struct connection *c, struct error *err)
{
	int r = 0;

	pthread_mutex_lock(&c->lock);
	if (c->poller.fd < 0) {
		r = poller_open(&c->poller, err);
		poll_update(c);
	}
	if (r == 0)
		r = c->poller.fd;
	pthread_mutex_unlock(&c->lock);
	return r;
}

/* --- posted -------------------------------------------------------------- */

static bool may_post(struct connection *c)
{
	bool may;

	pthread_mutex_lock(&c->lock);
	may = c->n_posted < MAX_POSTED;
	pthread_mutex_unlock(&c->lock);
	return may;
}

static int call_and_forget(struct connection *c, const struct request *request,
			   struct error *err)
{
	struct answer answer;
	int r = connection_call(c, request, -1, &answer, err);

	if (r == 0)
		answer_deinit(&answer);
	return r;
}

int connection_post(struct connection *c, const struct request *request,
		    const struct post *post, struct error *err)
{
	struct call *call;
	int r;

	if (!may_post(c))
		return call_and_forget(c, request, err);
	r = begin_call(c, request, -1, &call, err);
	if (r < 0)
		return r;
	call->is_orphan = call->is_posted = true;
	call->post = *post;
	c->n_posted++;
	send_call(c, call);
	pthread_mutex_unlock(&c->lock);
	return 0;
}

void connection_forget_posts(struct connection *c, const void *data)
{
	pthread_mutex_lock(&c->lock);
	for (struct call *call = c->first; call; call = call->next) {
		if (call->post.data == data)
			call->post.refused = NULL;
	}
	pthread_mutex_unlock(&c->lock);
}

bool connection_is_outdated(const struct connection *c)
{
	return table_epoch(c->table) !=
	       atomic_load_explicit(&c->table_epoch, memory_order_relaxed);
}

bool connection_is_down(struct connection *c)
{
	struct pollfd item = {.events = POLLRDHUP};
	bool is_down;

	pthread_mutex_lock(&c->lock);
	item.fd = c->sock_fd;
	is_down = item.fd < 0 ||
		  (poll(&item, 1, 0) > 0 &&
		   (item.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0);
	pthread_mutex_unlock(&c->lock);
	return is_down;
}

void connection_ring(const struct connection *c)
{
	uint64_t one = 1;

	/* EAGAIN: it rings loudly enough already. */
	(void)!write(c->doorbell_fd, &one, sizeof(one));
}

/* --- life ---------------------------------------------------------------- */

/* A broker that is not there is told at once; a full backlog, and one that is
 * just being replaced, are waited for. */
static int first_handshake(const struct connection *c, struct welcome *ret,
			   struct error *err)
{
	int64_t deadline_ms = handshake_now_ms() + c->reconnect_ms;
	int64_t asked_ms = 0;
	struct error last;

	for (;;) {
		int r = handshake_try(&c->self, deadline_ms, ret, &last);

		if (r == HANDSHAKE_OK)
			return 0;
		if (r < 0 || last.code == -ENOENT ||
		    last.code == -ECONNREFUSED ||
		    handshake_now_ms() >= deadline_ms)
			return error_set(err, last.code, "%s", last.msg);
		r = interrupt_sleep(&c->self.interrupt, 1000000, &asked_ms,
				    err);
		if (r < 0)
			return r;
	}
}

int connection_open(struct connection *c, char *path,
		    const struct fsdp_connect_options *options,
		    int *ret_table_fd, int *ret_refs_fd, uint32_t *ret_n_slots,
		    struct error *err)
{
	struct welcome welcome;
	int r;

	*c = CONNECTION_NULL;
	c->self.path = path;
	c->self.budget = options->budget;
	c->self.interrupt = (struct interrupt){options->interrupted,
					       options->interrupted_data};
	c->reconnect_ms = options->reconnect_ms > 0 ? options->reconnect_ms
						    : RECONNECT_DEFAULT_MS;
	c->next_number = 1;
	pthread_mutex_init(&c->lock, NULL);
	c->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (c->wake_fd < 0) {
		r = error_errno(err, -errno, "make an eventfd");
		goto close;
	}
	r = first_handshake(c, &welcome, err);
	if (r < 0)
		goto close;
	connected(c, welcome.sock_fd);
	c->self.session = welcome.hello.session;
	memcpy(c->self.token, welcome.hello.token, TOKEN_SIZE);
	*ret_table_fd = welcome.fds[0];
	*ret_refs_fd = welcome.fds[1];
	c->doorbell_fd = welcome.fds[2];
	*ret_n_slots = welcome.hello.n_slots;
	return 0;
close:
	connection_close(c);
	return r;
}

void connection_attach(struct connection *c, const struct table *table,
		       int refs_fd, connection_orphan_fn *on_orphan,
		       void *orphan_data)
{
	c->table = table;
	c->table_epoch = table_epoch(table);
	c->self.is_reconnect = true;
	c->self.refs_fd = refs_fd;
	c->self.doorbell_fd = c->doorbell_fd;
	c->on_orphan = on_orphan;
	c->orphan_data = orphan_data;
}

static void free_calls(struct call *call)
{
	while (call) {
		struct call *next = call->next;

		call_free(call);
		call = next;
	}
}

void connection_close(struct connection *c)
{
	int fds[] = {c->sock_fd, c->wake_fd, c->doorbell_fd};

	for (size_t i = 0; i < sizeof(fds) / sizeof(*fds); i++)
		if (fds[i] >= 0)
			(void)close(fds[i]);
	c->sock_fd = c->wake_fd = c->doorbell_fd = -1;
	poller_close(&c->poller);
	free_calls(c->first);
	free_calls(c->idle);
	c->first = c->last = c->first_unsent = c->idle = NULL;
	free(c->self.path);
	c->self.path = NULL;
}
