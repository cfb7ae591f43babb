/*
 * struct fsdp_client: one session, and what every public function begins with.
 *
 * What the calls without system call read (guard, refs, table) never changes
 * between connect and close; a broker that comes back brings the same files.
 */
#pragma once
#include "client/connection.h"
#include "client/copy.h"
#include "client/deferred.h"
#include "client/error.h"
#include "client/event.h"
#include "client/fsdp.h"
#include "client/guard.h"
#include "client/mapping.h"
#include "client/tensor.h"
#include "client/timeline.h"
#include "shm/refs.h"
#include "shm/table.h"
#include <stdbool.h>
#include <stdint.h>

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
	pthread_mutex_t comms_lock;
	struct fsdp_comm *comms;       /* joined, and not left */
	struct fsdp_client *next_busy; /* fsdp_close() */
	struct shelf shelves[SHELVES];
};

/* -EINVAL: it is NULL; -ECHILD: it is the parent's. With a sentence. */
int client_refuse(const struct fsdp_client *client, struct error *err);

/* May this process use the connection? One load. */
static inline int client_check(const struct fsdp_client *client,
			       struct error *err)
{
	if (__builtin_expect(!client || guard_is_forked(&client->guard), 0))
		return client_refuse(client, err);
	return 0;
}

/* client_check(), and the handle is one: not NULL, and not freed, as far as
 * that can be seen (its memory may have become another handle's). -EINVAL. */
int client_check_tensor(const struct fsdp_tensor *tensor, struct error *err);
/* The same, and it is held. */
int client_check_held(const struct fsdp_tensor *tensor, struct error *err);

/* client_check(), and a batch of `n`: -E2BIG beyond FSDP_MAX_BATCH. */
int client_check_batch(const struct fsdp_client *client, size_t n,
		       struct error *err);

/* It answered with a version that is not newer than asked. -EPROTO. */
int client_refuse_old_broker(struct error *err);

/* Unmap retired chunks. */
void client_retire(struct fsdp_client *client);
/* What was shared of this chunk may be used for something else, or freed. */
void client_end_share(struct fsdp_client *client, uint32_t chunk);

/* connection_call(), and what slow paths do besides: client_retire(), and what
 * streams have done since, where only we can know (client/event.h): while that
 * is so, a call that waits looks again from time to time. */
int client_call(struct fsdp_client *client, const struct request *request,
		struct answer *ret, struct error *err);

/* connection_post(), likewise. */
int client_post(struct fsdp_client *client, const struct request *request,
		const struct post *post, struct error *err);

/* client_call() where the answer says nothing but yes. */
int client_command(struct fsdp_client *client, const struct request *request,
		   struct error *err);

/* Pending bits are set: ring. A broker that was restarted and has not heard of
 * us since is told first who we are, since it cannot see our bits yet. */
void client_ring(struct fsdp_client *client);
