#include "client/one_way.h"
#include "client/connection.h"
#include "client/exchange.h"

/* The maximum number of one-way requests without a reply. It is a small part of
 * the number of replies that the broker can record for a session, because a
 * request that exceeds that number is sent again after later requests. */
#define MAX_ONE_WAY 16

static bool may_send_one_way(struct connection *c)
{
	bool may;

	pthread_mutex_lock(&c->lock);
	may = c->calls.n_one_way < MAX_ONE_WAY;
	pthread_mutex_unlock(&c->lock);
	return may;
}

static int call_and_forget(struct connection *c, const struct request *request,
			   struct error *err)
{
	struct received received;
	int r = connection_call(c, request, -1, &received, err);

	if (r == 0)
		received_deinit(&received);
	return r;
}

int connection_send_one_way(struct connection *c, const struct request *request,
			    const struct one_way *one_way, struct error *err)
{
	struct call *call;
	int r;

	if (!may_send_one_way(c))
		return call_and_forget(c, request, err);
	r = connection_begin_call(c, request, -1, &call, err);
	if (r < 0)
		return r;
	call->is_orphan = call->is_one_way = true;
	call->one_way = *one_way;
	c->calls.n_one_way++;
	exchange_send(c, call);
	pthread_mutex_unlock(&c->lock);
	return 0;
}

void connection_forget_one_way(struct connection *c, const void *data)
{
	pthread_mutex_lock(&c->lock);
	for (struct call *call = c->calls.first; call; call = call->next) {
		if (call->one_way.data == data)
			call->one_way.refused = NULL;
	}
	pthread_mutex_unlock(&c->lock);
}
