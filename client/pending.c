/*
 * Gets that are begun, and completed when a descriptor becomes readable, for
 * event loops.
 */
#include "client/begun.h"
#include "client/bundle.h"
#include "client/client.h"
#include "client/clock.h"
#include "client/get.h"
#include "client/sized.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct fsdp_pending {
	struct fsdp_client *client;
	/* NULL: all tensors were in the cache and are in `got` */
	struct call *call;
	struct fsdp_get_options options;
	int64_t start_ms;
	bool is_bundle; /* a get of a bundle has no names and always a call */
	size_t n;
	struct fsdp_tensor **got; /* owned, like the strings in `names` */
	char *names[];
};

static void pending_free(struct fsdp_pending *pending)
{
	for (size_t i = 0; i < pending->n; i++)
		free(pending->names[i]);
	free(pending->got);
	free(pending);
}

static struct fsdp_pending *pending_new(const char *const *names, size_t n)
{
	struct fsdp_pending *pending =
		calloc(1, sizeof(*pending) + n * sizeof(*pending->names));

	if (!pending)
		return NULL;
	pending->n = n;
	pending->got = calloc(n + 1, sizeof(struct fsdp_tensor *));
	for (size_t i = 0; i < n && pending->got; i++) {
		pending->names[i] = strdup(names[i]);
		if (!pending->names[i])
			break;
	}
	if (pending->got && (n == 0 || pending->names[n - 1]))
		return pending;
	pending_free(pending);
	return NULL;
}

static int begin(struct fsdp_pending *pending, struct error *err)
{
	const char *const *names = (const char *const *)pending->names;
	struct fsdp_client *client = pending->client;
	struct request request;

	if (get_desc(client, names, pending->n, &pending->options,
		     pending->got))
		return 0;
	request = get_request(names, pending->n, &pending->options);
	client_retire(client);
	return connection_begin(&client->connection, &request, &pending->call,
				err);
}

int fsdp_get_begin(struct fsdp_client *client, const char *const *names,
		   size_t n, const struct fsdp_get_options *options,
		   struct fsdp_pending **ret)
{
	struct error *err = error_of_thread();
	struct fsdp_get_options desc;
	struct fsdp_pending *pending;
	int r;

	r = client_check_batch(client, n, err);
	if (r == 0)
		r = sized_take(&desc, options, SIZED(fsdp_get_options), err);
	if (r == 0)
		r = get_check(&desc, err);
	if (r == 0 && (n == 0 || desc.known_only))
		r = error_set(
			err, -EINVAL,
			"cannot begin the get: n is 0, or options->known_only "
			"is set; pass names, and leave known_only 0");
	if (r < 0)
		return r;
	pending = pending_new(names, n);
	if (!pending)
		return error_nomem(err, "a get");
	pending->client = client;
	pending->options = desc;
	pending->start_ms = clock_now_ms();
	r = begin(pending, err);
	if (r < 0)
		pending_free(pending);
	else
		*ret = pending;
	return r;
}

/* Returns 0 if `got` is complete, or CONNECTION_PENDING. */
static int collect(struct fsdp_pending *pending, struct error *err)
{
	struct fsdp_client *client = pending->client;
	struct received received;
	int r;

	if (!pending->call)
		return 0;
	r = connection_collect(&client->connection, pending->call, &received,
			       err);
	return r != 0 ? r
		      : get_adopt(client, &received,
				  (const char *const *)pending->names,
				  pending->n, &pending->options, pending->got,
				  err);
}

static int check_end(const struct fsdp_pending *pending, bool is_bundle,
		     struct error *err)
{
	if (!pending)
		return error_set(err, -EINVAL,
				 "cannot end the get: the handle is NULL");
	if (pending->is_bundle != is_bundle)
		return error_set(
			err, -EINVAL, "cannot end the get: %s",
			is_bundle ? "it was begun by fsdp_get_begin(); call "
				    "fsdp_get_end()"
				  : "it was begun by fsdp_bundle_get_begin(); "
				    "call fsdp_bundle_get_end()");
	return client_check(pending->client, err);
}

static int refuse_early(struct error *err)
{
	return error_set(err, -EAGAIN,
			 "the get has not finished; poll fsdp_fd()");
}

int fsdp_get_end(struct fsdp_pending *pending, struct fsdp_tensor **ret)
{
	struct error *err = error_of_thread();
	int r;

	r = check_end(pending, false, err);
	if (r < 0)
		return r;
	r = collect(pending, err);
	if (r == CONNECTION_PENDING)
		return refuse_early(err);
	if (r == 0)
		r = get_await(pending->got, pending->n, &pending->options,
			      pending->start_ms, ret, err);
	pending_free(pending);
	return r;
}

/* --- bundles ------------------------------------------------------------- */

int fsdp_bundle_get_begin(struct fsdp_client *client, const char *name,
			  const struct fsdp_get_options *options,
			  struct fsdp_pending **ret)
{
	struct error *err = error_of_thread();
	struct fsdp_get_options desc;
	struct fsdp_pending *pending;
	struct request request;
	int r;

	r = bundle_get_request(client, name, options, &desc, &request, err);
	if (r < 0)
		return r;
	pending = pending_new(NULL, 0);
	if (!pending)
		return error_nomem(err, "a get");
	pending->client = client;
	pending->options = desc;
	pending->is_bundle = true;
	client_retire(client);
	r = connection_begin(&client->connection, &request, &pending->call,
			     err);
	if (r < 0)
		pending_free(pending);
	else
		*ret = pending;
	return r;
}

int fsdp_bundle_get_end(struct fsdp_pending *pending, struct fsdp_tensor ***ret,
			size_t *ret_n)
{
	struct error *err = error_of_thread();
	struct received received;
	int r;

	r = check_end(pending, true, err);
	if (r < 0)
		return r;
	r = connection_collect(&pending->client->connection, pending->call,
			       &received, err);
	if (r == CONNECTION_PENDING)
		return refuse_early(err);
	if (r == 0)
		r = bundle_get_adopt(pending->client, &received,
				     &pending->options, ret, ret_n, err);
	pending_free(pending);
	return r;
}

/* --- names and bundles --------------------------------------------------- */

void fsdp_get_cancel(struct fsdp_pending *pending)
{
	if (!pending || guard_is_forked(&pending->client->guard))
		return;
	if (pending->call)
		connection_abandon(&pending->client->connection, pending->call);
	else
		for (size_t i = 0; i < pending->n; i++)
			fsdp_free(pending->got[i]);
	pending_free(pending);
}

int fsdp_fd(struct fsdp_client *client)
{
	struct error *err = error_of_thread();
	int r = client_check(client, err);

	return r < 0 ? r : connection_poll_fd(&client->connection, err);
}
