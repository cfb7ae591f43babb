/*
 * Getting tensors by name: from the cache, otherwise from the broker.
 */
#include "client/get.h"
#include "client/cache.h"
#include "client/client.h"
#include "client/clock.h"
#include "client/places.h"
#include "client/sized.h"
#include "client/stream.h"
#include <errno.h>
#include <string.h>

/* The time between two looks at the connection. */
#define LOOK_MS 1000

static bool is_still_shown(const struct fsdp_client *client,
			   const struct fsdp_tensor *tensor)
{
	return table_load(&client->table, tensor->slot) ==
	       table_word(tensor->generation, SLOT_PUBLISHED);
}

static bool are_newer(struct fsdp_tensor *const *tensors, size_t n,
		      uint64_t newer_than)
{
	for (size_t i = 0; i < n && newer_than; i++)
		if (desc_rest(tensor_desc(tensors[i]))->version <= newer_than)
			return false;
	return true;
}

static void free_all(struct fsdp_tensor **tensors, size_t n)
{
	while (n-- > 0)
		fsdp_free(tensors[n]);
}

/*
 * A get of cached tensors makes no request, so it would not learn that the
 * broker was replaced by one that does not know this session, and would get the
 * old tensors for ever. So a get looks at the connection once in a while.
 * Returns false if the session is lost. The cache is empty then, and each later
 * get makes a request, which fails.
 */
static bool has_session(struct fsdp_client *client)
{
	int64_t now_ms = clock_tick_ms();
	int64_t at_ms =
		atomic_load_explicit(&client->look_at_ms, memory_order_relaxed);

	if (__builtin_expect(now_ms < at_ms, 1) ||
	    !atomic_compare_exchange_strong(&client->look_at_ms, &at_ms,
					    now_ms + LOOK_MS) ||
	    connection_look(&client->connection))
		return true;
	cache_clear(client);
	return false;
}

/*
 * Names of a bundle must be of one version. The broker takes all old members
 * out of the state PUBLISHED before it publishes the first new one; so if all
 * tensors that we got are PUBLISHED at one moment, they are of one version.
 * That moment is between the last acquire and the second look.
 */
bool get_desc(struct fsdp_client *client, const char *const *names, size_t n,
	      const struct fsdp_get_options *options, struct fsdp_tensor **got)
{
	size_t n_got = 0, n_shown = 0;

	while (n_got < n) {
		struct cache_key key = cache_key(names[n_got], options);

		got[n_got] = cache_get(client, &key);
		if (!got[n_got])
			break;
		n_got++;
	}
	if (n_got == n && n > 1)
		while (n_shown < n && is_still_shown(client, got[n_shown]))
			n_shown++;
	if (n_got == n && (n == 1 || n_shown == n) &&
	    (!options->newer_than || are_newer(got, n, options->newer_than)) &&
	    has_session(client))
		return true;
	free_all(got, n_got);
	return false;
}

int get_check(const struct fsdp_get_options *options, struct error *err)
{
	if (__builtin_expect(!options->version, 1))
		return 0;
	return error_set(err, -EINVAL,
			 "options->version is for bundles only, because a "
			 "name keeps only its newest version; leave it 0");
}

struct request get_request(const char *const *names, size_t n,
			   const struct fsdp_get_options *options)
{
	return (struct request){
		.kind = MESSAGE_GET,
		.get = {.timeout_ms = options->timeout_ms,
			.is_trust_set = options->is_trust_set,
			.trusted_uid = options->trusted_uid,
			.newer_than = options->newer_than,
			.n_names = (uint32_t)n,
			.names = (const char **)names},
	};
}

int get_adopt(struct fsdp_client *client, struct received *received,
	      const char *const *names, size_t n,
	      const struct fsdp_get_options *options, struct fsdp_tensor **got,
	      struct error *err)
{
	struct places_use use = {
		.n = n, .names = names, .is_named = true, .options = options};
	int r = places_receive(client, received, &use, got, err);

	if (r < 0 || are_newer(got, n, options->newer_than))
		return r;
	free_all(got, n);
	return client_refuse_old_broker(err);
}

static int ask(struct fsdp_client *client, const char *const *names, size_t n,
	       const struct fsdp_get_options *options, struct fsdp_tensor **got,
	       struct error *err)
{
	struct request request = get_request(names, n, options);
	struct received received;
	int r = client_call(client, &request, &received, err);

	return r < 0 ? r
		     : get_adopt(client, &received, names, n, options, got,
				 err);
}

static int refuse_unknown(const char *name, struct error *err)
{
	return error_set(
		err, -EAGAIN,
		"this process does not know the newest version of \"%s\", and "
		"known_only does not ask fsdpd; get it without known_only",
		name);
}

/* Check without a request that the tensors are written. */
static int check_written(struct fsdp_tensor *const *tensors, size_t n,
			 const struct fsdp_get_options *options,
			 struct error *err)
{
	for (size_t i = 0; i < n; i++) {
		const struct fsdp_tensor *tensor = tensors[i];

		switch (stream_is_for(tensor) ? stream_peek(tensor)
					      : WRITTEN_YES) {
		case WRITTEN_PENDING:
			return refuse_unknown(tensor_desc(tensor)->name, err);
		case WRITTEN_NEVER:
			if (!options->accepts_tainted)
				return stream_refuse_tainted(tensor, err);
			break;
		case WRITTEN_YES:
			break;
		}
	}
	return 0;
}

int get_await(struct fsdp_tensor **got, size_t n,
	      const struct fsdp_get_options *options, int64_t start_ms,
	      struct fsdp_tensor **ret, struct error *err)
{
	int r = __builtin_expect(options->known_only, 0)
			? check_written(got, n, options, err)
			: stream_await(got, n, options, start_ms, err);

	if (r == 0) {
		memcpy(ret, got, n * sizeof(*ret));
		return 0;
	}
	free_all(got, n);
	return r;
}

int fsdp_get(struct fsdp_client *client, const char *const *names, size_t n,
	     const struct fsdp_get_options *options, struct fsdp_tensor **ret)
{
	struct error *err = error_of_thread();
	struct fsdp_tensor *got[FSDP_MAX_BATCH];
	static const struct fsdp_get_options defaults;
	const struct fsdp_get_options *desc;
	struct fsdp_get_options room;
	int64_t start_ms = 0;
	int r;

	r = client_check_batch(client, n, err);
	if (r < 0 || n == 0)
		return r;
	desc = sized_look(&room, options ? options : &defaults,
			  SIZED(fsdp_get_options), err);
	if (!desc || get_check(desc, err) < 0)
		return err->code;
	if (!get_desc(client, names, n, desc, got)) {
		if (desc->known_only)
			return refuse_unknown(names[0], err);
		start_ms = clock_now_ms();
		r = ask(client, names, n, desc, got, err);
	}
	return r < 0 ? r : get_await(got, n, desc, start_ms, ret, err);
}
