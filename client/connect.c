/*
 * Makes and closes a connection with everything that belongs to it.
 */
#include "client/bundle.h"
#include "client/cache.h"
#include "client/channel.h"
#include "client/client.h"
#include "client/handshake.h"
#include "client/own_fd.h"
#include "client/places.h"
#include "client/sized.h"
#include "proto/socket_path.h"
#include <errno.h>
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

/* Return a copy of the path to connect to. */
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

/* Return the grants in a reply whose caller has given up. */
static void undo(struct received *received, void *data)
{
	struct fsdp_client *client = data;
	struct manifest *manifest;
	struct places_reply places;

	if (received->reply.kind == MESSAGE_GROUP) {
		places = (struct places_reply){
			.n_places = received->reply.group.n_places,
			.places = received->reply.group.places,
		};
		places_give_back(client, &places);
	} else if (received->reply.kind != MESSAGE_BUNDLE_GET) {
		places_give_back(client, &received->reply.places);
	} else if (received->n_fds > 0 &&
		   places_open_manifest(client, &received->reply.bundle_get,
					received->fds[0], &manifest,
					NULL) == 0) {
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
	/* Only the mapping is needed. */
	(void)close(client->table.fd);
	client->table.fd = -1;
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
	stream_list_init(&client->events);
	stream_list_init(&client->deferred);
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

/* Keep a client that is not freed in a list, so that leak checkers find it.
 * There is no lock, because another thread may have held it when this process
 * was forked. */
static void keep(struct fsdp_client *client)
{
	static _Atomic(struct fsdp_client *) kept;

	client->next_kept = atomic_load(&kept);
	while (!atomic_compare_exchange_weak(&kept, &client->next_kept, client))
		;
}

/* In a forked child the ref-counter file is not mapped, and other memory may be
 * at its address. */
static void close_refs(struct fsdp_client *client, bool is_forked)
{
	own_fd_close(client->refs.fd, client->connection.self.mark);
	client->refs.fd = -1;
	if (!is_forked)
		refs_close(&client->refs);
}

static void client_free(struct fsdp_client *client, bool is_forked)
{
	bundle_free_all(client);
	if (client->comm_hooks)
		client->comm_hooks->free_all(client);
	for (size_t i = 0; i < STRIPES; i++) {
		cache_drop_all(&client->stripes[i]);
		stripe_deinit(&client->stripes[i]);
	}
	if (is_forked)
		connection_leave(&client->connection);
	else
		connection_close(&client->connection);
	copiers_deinit(&client->copiers, is_forked);
	timeline_book_deinit(&client->timelines, is_forked);
	event_book_deinit(&client->events);
	deferred_deinit(&client->deferred);
	mappings_deinit(&client->mappings, is_forked);
	close_refs(client, is_forked);
	table_close(&client->table);
	guard_close(&client->guard);
	if (is_forked)
		keep(client);
	else
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
		if (client->connection.sock_fd >= 0)
			handshake_undo(client->connection.sock_fd);
		client_free(client, false);
		return r;
	}
	*ret = client;
	return 0;
}

/* Wait for the devices. Work that was published or released on a stream needs
 * the mappings until it is complete, and a stream may not have reached its wait
 * for another process yet. */
static int await_devices(struct fsdp_client *client, struct error *err)
{
	int32_t timeout_ms = client->connection.reconnect_ms;
	int r = 0;

	if (client->comm_hooks)
		r = client->comm_hooks->stop_all(client, err);
	if (r == 0)
		r = mappings_synchronize(&client->mappings, timeout_ms, err);
	if (r == 0)
		r = timeline_book_synchronize(&client->timelines, timeout_ms,
					      err);
	return r;
}

/* Close the socket, and keep everything else. Since the session is not ended,
 * the broker does not give the memory to other processes. */
static void leave_busy(struct fsdp_client *client)
{
	connection_close(&client->connection);
	keep(client);
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
	/* Their threads use the connection. */
	channel_free_all(client, is_forked);
	r = is_forked ? 0 : await_devices(client, err);
	if (r < 0) {
		leave_busy(client);
		return error_wrap(
			err, r,
			"cannot close the connection; its tensors stay mapped, "
			"and fsdpd keeps them, until this process ends");
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

	return client_command(client, &request, err);
}
