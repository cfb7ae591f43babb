#include "client/reconnect.h"
#include "client/clock.h"
#include "client/connection.h"
#include "client/own_fd.h"
#include <errno.h>

#define PAUSE_MAX_MS 50
/* How long reconnect_once() waits for a broker that has accepted the
 * connection. */
#define ONCE_MS 50

static void connected(struct connection *c, const struct greeting *greeting)
{
	own_fd_mark(greeting->sock_fd, c->self.mark);
	c->sock_fd = greeting->sock_fd;
	atomic_store_explicit(&c->epoch, greeting->epoch, memory_order_relaxed);
	c->away_until_ms = 0;
	c->connected_ms = clock_now_ms();
	c->calls.first_unsent = c->calls.first;
}

/* Only these two errors end the session. */
static void note_loss(struct connection *c, const struct error *err)
{
	if (err->code == -ESTALE || err->code == -EBADF)
		c->lost = *err;
}

int reconnect_first(struct connection *c, struct greeting *ret,
		    struct error *err)
{
	int64_t deadline_ms = clock_now_ms() + c->reconnect_ms;
	int64_t asked_ms = 0;
	struct error last;

	for (;;) {
		int r = handshake_try(&c->self, deadline_ms, ret, &last);

		if (r == HANDSHAKE_OK) {
			connected(c, ret);
			return 0;
		}
		if (r < 0 || last.code == -ENOENT ||
		    last.code == -ECONNREFUSED || clock_now_ms() >= deadline_ms)
			return error_set(err, last.code, "%s", last.msg);
		r = interrupt_sleep(&c->self.interrupt, 1000000, &asked_ms,
				    err);
		if (r < 0)
			return r;
	}
}

/* Try with growing pauses, without the lock; only the reader changes these
 * members. */
static int handshake_retry(const struct connection *c, const struct call *mine,
			   struct greeting *ret, struct error *err)
{
	struct identity self = c->self;
	int64_t wait_ms = 1, asked_ms = 0, reply_ms = c->away_until_ms;

	self.interrupt = call_interrupt(mine, &c->self.interrupt);
	/* A call that is late tries once, but if the broker accepts the
	 * connection, it gets the whole time for its reply. */
	if (reply_ms <= clock_now_ms())
		reply_ms = clock_now_ms() + c->reconnect_ms;
	for (;;) {
		int r = handshake_try(&self, reply_ms, ret, err);

		if (r <= 0)
			return r;
		if (clock_now_ms() + wait_ms > c->away_until_ms)
			/* The errno of connect() must not be returned: -ENOENT
			 * and -ETIMEDOUT would tell callers that a name does
			 * not exist (in time). */
			return error_wrap(err, -ECONNREFUSED,
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

int reconnect(struct connection *c, struct call *mine, struct error *err)
{
	struct greeting greeting;
	int r;

	if (c->lost.code < 0)
		return error_set(err, c->lost.code, "%s", c->lost.msg);
	if (!c->away_until_ms)
		c->away_until_ms = clock_now_ms() + c->reconnect_ms;
	pthread_mutex_unlock(&c->lock);
	r = handshake_retry(c, mine, &greeting, err);
	pthread_mutex_lock(&c->lock);
	if (r == 0) {
		connected(c, &greeting);
	} else if (r == -EINTR) {
		/* Other threads may try again. */
		mine->is_interrupted = true;
		r = 0;
	} else {
		/* No call waits for less than a pause, so a shorter rest of the
		 * time is dropped. */
		if (c->away_until_ms < clock_now_ms() + PAUSE_MAX_MS)
			c->away_until_ms = clock_now_ms();
		note_loss(c, err);
	}
	return r;
}

void reconnect_once(struct connection *c)
{
	struct identity self = c->self;
	struct greeting greeting;
	struct error err;
	int r;

	self.interrupt = (struct interrupt){0};
	pthread_mutex_unlock(&c->lock);
	r = handshake_try(&self, clock_now_ms() + ONCE_MS, &greeting, &err);
	pthread_mutex_lock(&c->lock);
	if (r == HANDSHAKE_OK)
		connected(c, &greeting);
	else if (r < 0)
		note_loss(c, &err);
}

bool connection_is_outdated(const struct connection *c)
{
	return atomic_load_explicit(&c->table->header->epoch,
				    memory_order_acquire) !=
	       atomic_load_explicit(&c->epoch, memory_order_relaxed);
}
