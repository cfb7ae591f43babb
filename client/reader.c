#include "client/reader.h"
#include "client/clock.h"
#include "client/connection.h"
#include "client/exchange.h"
#include "client/reconnect.h"
#include <errno.h>
#include <time.h>

/* Call the interrupt function, unless the call is over: after the reply it may
 * tell of a signal that nobody would hear of. */
static void ask(struct connection *c, struct call *mine, bool is_cut)
{
	const struct interrupt interrupt =
		call_interrupt(mine, &c->self.interrupt);

	if (mine->is_done || mine->is_interrupted || mine->is_begun ||
	    !interrupt_is_due(&interrupt, is_cut, &mine->asked_ms))
		return;
	pthread_mutex_unlock(&c->lock);
	mine->is_interrupted = interrupt_is_asked(&interrupt);
	pthread_mutex_lock(&c->lock);
}

/* Let another thread be the reader, if one waits. */
static void resign(struct connection *c, const struct call *mine)
{
	c->is_reading = false;
	for (struct call *call = c->calls.first; call; call = call->next) {
		if (call->is_done || call->is_orphan || call->is_begun ||
		    call == mine)
			continue;
		pthread_cond_signal(&call->changed);
		break;
	}
	exchange_update_poll(c);
}

void reader_lead(struct connection *c, struct call *mine)
{
	struct error err = ERROR_NULL;
	int r = 0;

	c->is_reading = true;
	mine->is_interrupted = false;
	while (!mine->is_done && !mine->is_interrupted &&
	       !(r == FRAME_AGAIN && mine->is_begun)) {
		bool is_cut = false;

		r = c->sock_fd >= 0 ? exchange_once(c, mine, &is_cut, &err)
				    : reconnect(c, mine, &err);
		if (r < 0)
			exchange_fail_all(c, &err);
		ask(c, mine, is_cut);
	}
	resign(c, mine);
}

void reader_reconnect(struct connection *c)
{
	c->is_reading = true;
	exchange_disconnect(c);
	reconnect_once(c);
	resign(c, NULL);
}

/* Wait while another thread reads. When that thread stops reading, it wakes one
 * of the waiting threads, which may return at once because it was interrupted;
 * so with an interrupt function each waiting thread looks again after a
 * while. */
static void follow(struct connection *c, struct call *mine)
{
	struct timespec until;
	bool is_late;

	if (!c->self.interrupt.fn) {
		pthread_cond_wait(&mine->changed, &c->lock);
		return;
	}
	(void)clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_nsec += INTERRUPT_SLICE_MS * 1000000L;
	until.tv_sec += until.tv_nsec / 1000000000;
	until.tv_nsec %= 1000000000;
	is_late = pthread_cond_clockwait(&mine->changed, &c->lock,
					 CLOCK_MONOTONIC, &until) == ETIMEDOUT;
	ask(c, mine, is_late);
}

int reader_give_up(struct connection *c, struct call *call, struct error *err)
{
	int r = error_set(err, call->error.code, "%s", call->error.msg);

	call->is_begun = false;
	if (!c->lost.code &&
	    (call_may_change_holds(call) || call_must_be_read(call))) {
		call->is_orphan = true;
		call_hurry(call);
		if (call->kind == MESSAGE_RELEASE)
			r = error_set(err, -EINPROGRESS,
				      "fsdpd went away before it replied; it "
				      "does this when it is back: %s",
				      call->error.msg);
	} else {
		call_detach(&c->calls, call);
		call_give(&c->calls, call);
	}
	return r;
}

int reader_run(struct connection *c, struct call *call, struct error *err)
{
	exchange_send(c, call);
	return reader_wait(c, call, err);
}

int reader_wait(struct connection *c, struct call *call, struct error *err)
{
	if (c->self.interrupt.fn)
		call->asked_ms = clock_now_ms();
	while (!call->is_done && !call->is_interrupted) {
		if (c->is_reading)
			follow(c, call);
		else
			reader_lead(c, call);
	}
	if (!call->is_done)
		interrupt_refuse(&call->error);
	return call->error.code ? reader_give_up(c, call, err) : 0;
}
