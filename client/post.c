#include "client/post.h"
#include "client/connection.h"
#include "client/exchange.h"

/* The maximum number of one-way requests whose replies were not read. It is a
 * small part of the broker's window of recorded replies: a request that finds
 * the window full is sent again, after later requests. */
#define MAX_POSTED 16

static bool may_post(struct connection *c)
{
	bool may;

	pthread_mutex_lock(&c->lock);
	may = c->calls.n_posted < MAX_POSTED;
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
	r = connection_begin_call(c, request, -1, &call, err);
	if (r < 0)
		return r;
	call->is_orphan = call->is_posted = true;
	call->post = *post;
	c->calls.n_posted++;
	exchange_send(c, call);
	pthread_mutex_unlock(&c->lock);
	return 0;
}

void connection_forget_posts(struct connection *c, const void *data)
{
	pthread_mutex_lock(&c->lock);
	for (struct call *call = c->calls.first; call; call = call->next) {
		if (call->post.data == data)
			call->post.refused = NULL;
	}
	pthread_mutex_unlock(&c->lock);
}
