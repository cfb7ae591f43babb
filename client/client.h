/*
 * struct fsdp_client: one session, the checks that every public function begins
 * with, and calls of the broker.
 *
 * The members that calls without a system call read (guard, refs, table) never
 * change between connect and close; a restarted broker has the same files.
 */
#pragma once
#include "client/connection.h"
#include "client/copy.h"
#include "client/deferred.h"
#include "client/error.h"
#include "client/event_book.h"
#include "client/fsdp.h"
#include "client/guard.h"
#include "client/mapping.h"
#include "client/tensor.h"
#include "client/timeline.h"
#include "shm/refs.h"
#include "shm/table.h"
#include <stdbool.h>
#include <stdint.h>

/* What closing a connection calls in client/rank/. */
struct comm_hooks {
	/* Stop all communicators, before the session ends. */
	int (*stop_all)(struct fsdp_client *client, struct error *err);
	/* Free all communicators that were not left. */
	void (*free_all)(struct fsdp_client *client);
};

struct fsdp_client {
	struct guard guard;
	struct refs refs;
	struct table table;
	uint32_t n_slots;
	struct mappings mappings;
	struct timeline_book timelines;
	struct event_book events;
	struct deferred_list deferred;
	pthread_mutex_t fences_lock; /* of those in our ref-counter entries */
	struct copiers copiers;
	struct connection connection;
	pthread_mutex_t bundles_lock;
	struct fsdp_bundle *bundles; /* staged by us, not ended yet */
	pthread_mutex_t channels_lock;
	struct fsdp_channel *channels; /* open */
	pthread_mutex_t comms_lock;
	struct fsdp_comm *comms;             /* joined, and not left */
	const struct comm_hooks *comm_hooks; /* NULL: none was ever joined */
	struct fsdp_client *next_kept;       /* fsdp_close() */
	struct stripe stripes[STRIPES];
};

/* -EINVAL: the client is NULL; -ECHILD: it belongs to the parent process. */
int client_refuse(const struct fsdp_client *client, struct error *err);

/* May this process use the connection? One load. */
static inline int client_check(const struct fsdp_client *client,
			       struct error *err)
{
	if (__builtin_expect(!client || guard_is_forked(&client->guard), 0))
		return client_refuse(client, err);
	return 0;
}

/* client_check(), and the handle is valid: not NULL and, as far as can be seen,
 * not freed (its memory may belong to another handle by now). -EINVAL. */
int client_check_tensor(const struct fsdp_tensor *tensor, struct error *err);
/* The same, and the handle has a hold. */
int client_check_held(const struct fsdp_tensor *tensor, struct error *err);

/* client_check(), and a batch of `n` is not too large: -E2BIG beyond
 * FSDP_MAX_BATCH. */
int client_check_batch(const struct fsdp_client *client, size_t n,
		       struct error *err);

/* The broker replied with a version that is not newer than requested. -EPROTO.
 */
int client_refuse_old_broker(struct error *err);

/* Unmap retired chunks. */
void client_retire(struct fsdp_client *client);
/* Memory that was shared of this chunk may now be freed or used otherwise. */
void client_end_share(struct fsdp_client *client, uint32_t chunk);

/* client_check(), connection_call(), and the other work of slow paths:
 * client_retire(), and reporting the progress of streams that only this process
 * can see (client/event.h). While there are such streams, a call that waits
 * looks at them from time to time. */
int client_call(struct fsdp_client *client, const struct request *request,
		struct received *ret, struct error *err);

/* connection_send_one_way(), likewise. */
int client_send_one_way(struct fsdp_client *client,
			const struct request *request,
			const struct one_way *one_way, struct error *err);

/* client_call() for requests whose reply is empty. */
int client_command(struct fsdp_client *client, const struct request *request,
		   struct error *err);
