/*
 * struct fsdp_client is one session. This header also has the checks with which
 * every public function begins, and functions that send requests to the broker.
 *
 * The members that are read by calls without a system call (guard, refs, table)
 * do not change between connect and close; a restarted broker has the same
 * files.
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

/* The functions of client/rank/ that close a connection. The files of client/
 * do not call client/rank/, so joining a communicator sets these pointers. */
struct comm_hooks {
	/* Stop the work of all communicators before the session ends. */
	int (*stop_all)(struct fsdp_client *client, struct error *err);
	/* Free all communicators that were not left. */
	void (*free_all)(struct fsdp_client *client);
};

struct fsdp_client {
	struct guard guard;
	struct refs refs;
	struct table table;
	uint32_t n_slots;
	_Atomic int64_t look_at_ms; /* when a get looks at the connection */
	struct mappings mappings;
	struct timeline_book timelines;
	struct stream_list events, deferred;
	/* of the fences in our ref-counter entries */
	pthread_mutex_t fences_lock;
	struct copiers copiers;
	struct connection connection;
	pthread_mutex_t bundles_lock;
	struct fsdp_bundle *bundles; /* that this process is staging */
	pthread_mutex_t channels_lock;
	struct fsdp_channel *channels; /* that this process has open */
	pthread_mutex_t comms_lock;
	struct fsdp_comm *comms; /* that were joined and not left */
	/* NULL: no communicator was ever joined */
	const struct comm_hooks *comm_hooks;
	/* in the list of kept clients (connect.c) */
	struct fsdp_client *next_kept;
	struct stripe stripes[STRIPES];
};

/* -EINVAL: the client is NULL; -ECHILD: it belongs to the parent process. */
int client_refuse(const struct fsdp_client *client, struct error *err);

/* Check whether this process may use the connection, by one load. */
static inline int client_check(const struct fsdp_client *client,
			       struct error *err)
{
	if (__builtin_expect(!client || guard_is_forked(&client->guard), 0))
		return client_refuse(client, err);
	return 0;
}

/* Do client_check(), and check that the handle is valid: not NULL and not
 * freed. The memory of a freed handle may belong to another handle by now,
 * which is not detected. -EINVAL. */
int client_check_tensor(const struct fsdp_tensor *tensor, struct error *err);
/* Do client_check_tensor(), and check that the handle has a hold. */
int client_check_held(const struct fsdp_tensor *tensor, struct error *err);

/* Do client_check(), and check the size of a batch. -E2BIG: `n` is above
 * FSDP_MAX_BATCH. */
int client_check_batch(const struct fsdp_client *client, size_t n,
		       struct error *err);

/* Return -EPROTO: the broker replied with a version that is not newer than
 * requested. */
int client_refuse_old_broker(struct error *err);

/* Unmap chunks that the broker has retired. */
void client_retire(struct fsdp_client *client);

/* Do client_check() and connection_call(). Before that, unmap retired chunks,
 * and report the progress of streams that only this process can see
 * (client/event.h). While there are such streams, a call that waits looks at
 * them from time to time. */
int client_call(struct fsdp_client *client, const struct request *request,
		struct received *ret, struct error *err);

/* Do client_call() for a request that must not be given up while it waits,
 * since it changes something. It waits in slices, and the interrupt function is
 * called between them. */
int client_call_in_slices(struct fsdp_client *client,
			  const struct request *request, struct received *ret,
			  struct error *err);

/* Have the broker end the sharing of the tensor, by client_call_in_slices().
 * While no such request is under way, the broker counts the hold of the handle,
 * if it has one. Without a hold the request only asks whether the tensor has
 * ended, which the table may show before the broker has committed it. */
int client_unshare(const struct fsdp_tensor *tensor, int32_t timeout_ms,
		   struct error *err);

/* Do client_call() with connection_send_one_way(), without client_check() and
 * without a look at streams. */
int client_send_one_way(struct fsdp_client *client,
			const struct request *request,
			const struct one_way *one_way, struct error *err);

/* Do client_call() for a request whose reply is empty. */
int client_command(struct fsdp_client *client, const struct request *request,
		   struct error *err);
