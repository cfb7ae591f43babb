/*
 * Connecting and closing, and small functions of the connection.
 */
#include "client/client.h"
#include "client/bundle.h"
#include "client/channel.h"
#include "client/clock.h"
#include "client/places.h"
#include "client/post.h"
#include "client/rank/comm.h"
#include "client/sized.h"
#include "proto/socket_path.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *fsdp_version(void)
{
	return FSDP_VERSION;
}

size_t fsdp_dtype_size(enum fsdp_dtype dtype)
{
	return dtype_size((uint32_t)dtype);
}

const char *fsdp_dtype_name(enum fsdp_dtype dtype)
{
	return dtype_name((uint32_t)dtype);
}

_Static_assert((int)FSDP_C128 == (int)DTYPE_MAX, "one numbering of dtypes");
_Static_assert(FSDP_MAX_DIMS == TENSOR_MAX_DIMS, "one limit of dimensions");
_Static_assert(FSDP_MAX_BATCH == MESSAGE_MAX_ITEMS, "one limit of batches");
_Static_assert(FSDP_TICKET_SIZE == TICKET_SIZE, "one size of tickets");

int client_refuse(const struct fsdp_client *client, struct error *err)
{
	if (!client)
		return error_set(err, -EINVAL,
				 "there is no connection: the client is NULL; "
				 "fsdp_connect() makes one");
	return error_set(err, -ECHILD,
			 "this process was forked after the connection to "
			 "fsdpd was made; call fsdp_connect() in it");
}

int client_check_tensor(const struct fsdp_tensor *tensor, struct error *err)
{
	if (!tensor)
		return error_set(err, -EINVAL,
				 "there is no tensor: the handle is NULL");
	if (!tensor->is_live)
		return error_set(err, -EINVAL,
				 "the handle was freed; get the tensor again");
	return client_check(tensor->client, err);
}

int client_check_held(const struct fsdp_tensor *tensor, struct error *err)
{
	int r = client_check_tensor(tensor, err);

	if (r < 0 || atomic_load_explicit(&tensor->holds, memory_order_relaxed))
		return r;
	return error_set(err, -EINVAL,
			 "the handle is not held: acquire it first, and "
			 "release it once for each hold");
}

int client_check_batch(const struct fsdp_client *client, size_t n,
		       struct error *err)
{
	int r = client_check(client, err);

	if (r < 0)
		return r;
	if (n > FSDP_MAX_BATCH)
		return error_set(err, -E2BIG,
				 "%zu items in one call; split them into "
				 "calls of %d",
				 n, FSDP_MAX_BATCH);
	return 0;
}

int client_refuse_old_broker(struct error *err)
{
	return error_set(err, -EPROTO,
			 "cannot wait for a newer version: this fsdpd is too "
			 "old for it; install the version that libfsdp has");
}

static bool is_holding(struct fsdp_tensor *tensor, void *data)
{
	const uint32_t *chunk = data;

	/* Relaxed: a thread that gets a new hold meanwhile reads the state
	 * table, where the chunk's slots are gone. */
	return desc_rest(tensor_desc(tensor))->chunk == *chunk &&
	       atomic_load_explicit(&tensor->holds, memory_order_relaxed) > 0;
}

static bool is_chunk_held(uint32_t chunk, void *data)
{
	return tensor_find(data, is_holding, &chunk) != NULL;
}

void client_retire(struct fsdp_client *client)
{
	mappings_retire(&client->mappings, &client->table, is_chunk_held,
			client);
}

void client_end_share(struct fsdp_client *client, uint32_t chunk)
{
	if (!is_chunk_held(chunk, client))
		mappings_end_own(&client->mappings, chunk);
	client_retire(client);
}

static int call_once(struct fsdp_client *client, const struct request *request,
		     struct answer *ret, struct error *err)
{
	struct event_sent *told;
	int r;

	client_retire(client);
	deferred_collect(client);
	told = event_tell(client);
	r = connection_call(&client->connection, request, -1, ret, err);
	if (told) /* A refusal is a reply, too. */
		event_told(client, told,
			   r == 0 || !connection_is_down(&client->connection));
	return r;
}

/* While a stream of ours must be looked at, only this process can do so: other
 * processes may wait for the memory, and this call may wait for them. */
#define SLICE_MS 20

static bool must_look(const struct fsdp_client *client)
{
	return event_are_sent(&client->events) ||
	       deferred_are_waiting(&client->deferred);
}

static int32_t next_slice(const struct fsdp_client *client, int32_t left_ms)
{
	if (!must_look(client) || (left_ms >= 0 && left_ms < SLICE_MS))
		return left_ms;
	return SLICE_MS;
}

/* Refused because the slice was over; if the broker is away, the slice is
 * longer. */
static bool is_slice_over(const struct fsdp_client *client, int r,
			  int64_t took_ms, int32_t slice_ms)
{
	return (r == -ETIMEDOUT || r == -ENOMEM || r == -EDQUOT) &&
	       slice_ms > 0 && took_ms >= slice_ms &&
	       took_ms < slice_ms + client->connection.reconnect_ms / 2;
}

/* Wait in slices, and look at our streams between them. */
static int call_patiently(struct fsdp_client *client, struct request *request,
			  int32_t *timeout_ms, struct answer *ret,
			  struct error *err)
{
	int64_t start_ms = clock_now_ms(), now_ms = start_ms, begun_ms;
	int32_t whole_ms = *timeout_ms, left_ms = whole_ms;
	int r;

	do {
		begun_ms = now_ms;
		*timeout_ms = next_slice(client, left_ms);
		r = call_once(client, request, ret, err);
		now_ms = clock_now_ms();
		if (whole_ms >= 0)
			left_ms = (int32_t)(whole_ms - (now_ms - start_ms));
	} while (is_slice_over(client, r, now_ms - begun_ms, *timeout_ms) &&
		 (whole_ms < 0 || left_ms > 0));
	if (r < 0 && *timeout_ms != whole_ms)
		error_wrap(err, r, "after %lld ms",
			   (long long)(now_ms - start_ms));
	return r;
}

int client_call(struct fsdp_client *client, const struct request *request,
		struct answer *ret, struct error *err)
{
	struct request copy;
	int32_t *timeout_ms;

	if (__builtin_expect(!must_look(client), 1))
		return call_once(client, request, ret, err);
	copy = *request;
	timeout_ms = request_timeout(&copy);
	return timeout_ms && *timeout_ms
		       ? call_patiently(client, &copy, timeout_ms, ret, err)
		       : call_once(client, request, ret, err);
}

int client_post(struct fsdp_client *client, const struct request *request,
		const struct post *post, struct error *err)
{
	client_retire(client);
	return connection_post(&client->connection, request, post, err);
}

int client_command(struct fsdp_client *client, const struct request *request,
		   struct error *err)
{
	struct answer answer;
	int r = client_call(client, request, &answer, err);

	if (r < 0)
		return r;
	answer_deinit(&answer);
	return 0;
}

void client_ring(struct fsdp_client *client)
{
	struct request ping = {.kind = MESSAGE_PING};

	connection_ring(&client->connection);
	if (connection_is_outdated(&client->connection))
		(void)client_command(client, &ping, NULL);
}

/* --- connect ------------------------------------------------------------- */

/* A new copy of the path to be used. */
static int choose_path(const char *path, char **ret, struct error *err)
{
	char default_path[SOCKET_PATH_SIZE];
	int r;

	if (!path) {
		r = socket_path_to_connect(default_path, err);
		if (r < 0)
			return r;
		path = default_path;
	}
	*ret = strdup(path);
	return *ret ? 0 : error_nomem(err, "a path");
}

/* The caller of this reply gave up: return the grants. */
static void undo(struct answer *answer, void *data)
{
	struct fsdp_client *client = data;
	struct manifest *manifest;
	struct places_reply places;

	if (answer->reply.kind == MESSAGE_GROUP) {
		places = (struct places_reply){
			.n_places = answer->reply.group.n_places,
			.places = answer->reply.group.places,
		};
		places_give_back(client, &places);
	} else if (answer->reply.kind != MESSAGE_BUNDLE_GET) {
		places_give_back(client, &answer->reply.places);
	} else if (answer->n_fds > 0 &&
		   places_open_manifest(client, &answer->reply.bundle_get,
					answer->fds[0], &manifest, NULL) == 0) {
		places_give_back_manifest(client, manifest);
		manifest_close(manifest);
	}
}

static int open_connection(struct fsdp_client *client,
			   const struct fsdp_connect_options *options,
			   struct error *err)
{
	int table_fd, refs_fd, r;
	char *path;

	r = choose_path(options->path, &path, err);
	if (r < 0)
		return r;
	r = connection_open(&client->connection, path, options, &table_fd,
			    &refs_fd, &client->n_slots, err);
	if (r < 0)
		return r;
	r = table_open(&client->table, table_fd, false, err);
	if (r < 0) {
		(void)close(refs_fd);
		return r;
	}
	r = refs_open(&client->refs, refs_fd, REFS_CLIENT, err);
	if (r < 0)
		return r;
	if (client->n_slots != client->table.header->n_slots ||
	    client->n_slots > TABLE_SLOTS)
		return error_set(
			err, -EPROTO, "fsdpd has %u slots, its state table %u",
			client->n_slots, client->table.header->n_slots);
	connection_attach(&client->connection, &client->table, client->refs.fd,
			  undo, client);
	return 0;
}

static struct fsdp_client *client_new(void)
{
	struct fsdp_client *client = aligned_alloc(_Alignof(struct fsdp_client),
						   sizeof(struct fsdp_client));

	if (!client)
		return NULL;
	memset(client, 0, sizeof(*client));
	client->guard = GUARD_NULL;
	client->refs = REFS_NULL;
	client->table = TABLE_NULL;
	mappings_init(&client->mappings);
	timeline_book_init(&client->timelines);
	event_book_init(&client->events);
	deferred_init(&client->deferred);
	pthread_mutex_init(&client->fences_lock, NULL);
	copiers_init(&client->copiers);
	client->connection = CONNECTION_NULL;
	pthread_mutex_init(&client->bundles_lock, NULL);
	pthread_mutex_init(&client->channels_lock, NULL);
	pthread_mutex_init(&client->comms_lock, NULL);
	for (size_t i = 0; i < STRIPES; i++)
		stripe_init(&client->stripes[i]);
	return client;
}

/* In a forked child the ref-counter file is not mapped, and other memory may be
 * at its address. */
static void client_free(struct fsdp_client *client, bool is_forked)
{
	channel_free_all(client, is_forked);
	bundle_free_all(client);
	comm_free_all(client);
	for (size_t i = 0; i < STRIPES; i++)
		stripe_deinit(&client->stripes[i]);
	connection_close(&client->connection);
	copiers_deinit(&client->copiers, is_forked);
	timeline_book_deinit(&client->timelines, is_forked);
	event_book_deinit(&client->events);
	deferred_deinit(&client->deferred);
	mappings_deinit(&client->mappings, is_forked);
	if (is_forked)
		(void)close(client->refs.fd);
	else
		refs_close(&client->refs);
	table_close(&client->table);
	guard_close(&client->guard);
	free(client);
}

int fsdp_connect(const struct fsdp_connect_options *options,
		 struct fsdp_client **ret)
{
	struct error *err = error_of_thread();
	struct fsdp_connect_options desc;
	struct fsdp_client *client;
	int r;

	r = sized_take(&desc, options, SIZED(fsdp_connect_options), err);
	if (r < 0)
		return r;
	client = client_new();
	if (!client)
		return error_nomem(err, "a connection");
	r = guard_open(&client->guard, err);
	if (r == 0)
		r = open_connection(client, &desc, err);
	if (r < 0) {
		client_free(client, false);
		return r;
	}
	*ret = client;
	return 0;
}

/* Work that was published or released on a stream continues after its caller
 * and needs the mappings; a stream may still have to reach its wait. */
static int await_devices(struct fsdp_client *client, struct error *err)
{
	int32_t timeout_ms = client->connection.reconnect_ms;
	int r = comm_stop_all(client, err);

	if (r == 0)
		r = mappings_synchronize(&client->mappings, timeout_ms, err);
	if (r == 0)
		r = timeline_book_synchronize(&client->timelines, timeout_ms,
					      err);
	return r;
}

/* Everything stays as it is, and so does the session, which was not closed: so
 * the memory is not given to other processes. It is kept in a list, so that
 * leak checkers find it. */
static void leave_busy(struct fsdp_client *client)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static struct fsdp_client *busy;

	connection_close(&client->connection);
	pthread_mutex_lock(&lock);
	client->next_busy = busy;
	busy = client;
	pthread_mutex_unlock(&lock);
}

int fsdp_close(struct fsdp_client *client)
{
	struct request goodbye = {.kind = MESSAGE_GOODBYE};
	struct error *err = error_of_thread();
	bool is_forked;
	int r;

	if (!client)
		return 0;
	is_forked = guard_is_forked(&client->guard);
	r = is_forked ? 0 : await_devices(client, err);
	if (r < 0) {
		leave_busy(client);
		return error_wrap(
			err, r,
			"tensors stay mapped here, and kept by fsdpd, "
			"until this process ends");
	}
	if (!is_forked)
		(void)client_command(client, &goodbye, NULL);
	client_free(client, is_forked);
	return 0;
}

int fsdp_ping(struct fsdp_client *client)
{
	struct request request = {.kind = MESSAGE_PING};
	struct error *err = error_of_thread();
	int r = client_check(client, err);

	return r < 0 ? r : client_command(client, &request, err);
}
