#include "client/begun.h"
#include "client/connection.h"
#include "client/exchange.h"
#include "client/reader.h"
#include <errno.h>

int connection_begin(struct connection *c, const struct request *request,
		     struct call **ret, struct error *err)
{
	struct call *call;
	int r = connection_begin_call(c, request, -1, &call, err);

	if (r < 0)
		return r;
	call->is_begun = true;
	c->n_begun++;
	exchange_send(c, call);
	exchange_update_poll(c);
	pthread_mutex_unlock(&c->lock);
	*ret = call;
	return 0;
}

/* End a call whose reply has arrived, or send the request again. */
static int finish(struct connection *c, struct call *call, struct received *ret,
		  struct error *err)
{
	int r;

	if (call->error.code)
		return reader_give_up(c, call, err);
	r = call_decode(call, ret, err);
	if (r != CALL_AGAIN) {
		call_give(&c->calls, call);
		return r;
	}
	call->is_done = false;
	c->n_begun++;
	exchange_send(c, call);
	return CONNECTION_PENDING;
}

int connection_collect(struct connection *c, struct call *call,
		       struct received *ret, struct error *err)
{
	int r = CONNECTION_PENDING;

	pthread_mutex_lock(&c->lock);
	if (!call->is_done && !c->is_reading) {
		exchange_check_socket(c);
		reader_lead(c, call);
	}
	if (call->is_done) {
		c->n_landed--;
		c->n_begun--;
		r = finish(c, call, ret, err);
	} else if (call->is_interrupted) {
		c->n_begun--;
		interrupt_refuse(&call->error);
		r = reader_give_up(c, call, err);
	}
	exchange_update_poll(c);
	pthread_mutex_unlock(&c->lock);
	return r;
}

int connection_await(struct connection *c, struct call *call, struct error *err)
{
	int r;

	pthread_mutex_lock(&c->lock);
	c->n_landed -= call->is_done;
	c->n_begun--;
	call->is_begun = false;
	exchange_check_socket(c);
	exchange_update_poll(c);
	r = reader_wait(c, call, err);
	pthread_mutex_unlock(&c->lock);
	return r;
}

int connection_take(struct connection *c, struct call *call,
		    struct received *ret, struct error *err)
{
	int r = call_decode(call, ret, err);

	pthread_mutex_lock(&c->lock);
	call_give(&c->calls, call);
	pthread_mutex_unlock(&c->lock);
	return r;
}

void connection_abandon(struct connection *c, struct call *call)
{
	pthread_mutex_lock(&c->lock);
	c->n_begun--;
	if (!call->is_done) {
		call->error = (struct error){.code = -ECANCELED};
		(void)reader_give_up(c, call, NULL);
	} else if (call->error.code) {
		c->n_landed--;
		(void)reader_give_up(c, call, NULL);
	} else {
		c->n_landed--;
		exchange_end_orphan(c, call);
	}
	exchange_update_poll(c);
	pthread_mutex_unlock(&c->lock);
	/* If the broker was restarted since we connected, it does not see that
	 * the grant was released before it has our hello. */
	if (connection_is_outdated(c))
		connection_ring_anew(c);
}

int connection_poll_fd(struct connection *c, struct error *err)
{
	int r = 0;

	pthread_mutex_lock(&c->lock);
	if (c->poller.fd < 0) {
		r = poller_open(&c->poller, c->self.mark, err);
		exchange_update_poll(c);
	}
	if (r == 0)
		r = c->poller.fd;
	pthread_mutex_unlock(&c->lock);
	return r;
}
