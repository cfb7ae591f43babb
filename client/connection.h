/*
 * The connection: many threads send requests over one socket.
 *
 * The library starts no thread for it. A thread that waits for a reply while no
 * other thread reads becomes the reader: it polls, receives, and delivers
 * replies to their calls; when its own reply has come, another waiting thread
 * becomes the reader. So one thread can wait in a get for a name that another
 * publishes.
 *
 * When the broker disappears, the reader reconnects, and every request without
 * a reply is sent again under its number. If the broker had executed a request
 * before, it sends the recorded reply.
 */
#pragma once
#include "client/call.h"
#include "client/handshake.h"
#include "client/poller.h"
#include "proto/error.h"
#include "proto/frame.h"
#include "proto/message.h"
#include "shm/table.h"
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* Undoes the grants in a reply to a call that no thread waits for any more. */
typedef void connection_orphan_fn(struct received *received, void *data);

struct connection {
	pthread_mutex_t lock;
	struct identity self; /* fixed once open */
	int32_t reconnect_ms;
	/* The end of the time in which calls wait for a broker that cannot be
	 * reached; 0: it can be reached. */
	int64_t away_until_ms;
	int sock_fd; /* -1: not connected; only the reader replaces it */
	int wake_fd; /* eventfd that wakes the reader to send requests */
	int doorbell_fd;
	const struct table *table;
	_Atomic uint64_t epoch; /* of the broker that has our hello */
	int64_t connected_ms;
	uint32_t n_broken; /* connections lost in a row within a short time */
	struct calls calls;
	bool is_reading;
	struct poller poller; /* for threads that poll instead of waiting */
	/* calls of connection_begin() that were not collected */
	uint32_t n_begun;
	uint32_t n_landed; /* those of them that are done */
	struct error lost; /* code < 0: the connection has failed for good */
	connection_orphan_fn *on_orphan;
	void *orphan_data;
};

#define CONNECTION_NULL                                                        \
	((struct connection){.sock_fd = -1,                                    \
			     .wake_fd = -1,                                    \
			     .doorbell_fd = -1,                                \
			     .calls = CALLS_NULL,                              \
			     .poller = POLLER_NULL})

/*
 * Connect and open a session. `*ret_table_fd` and `*ret_refs_fd` are the
 * descriptors of the state table and the ref-counter file, which the caller
 * owns, and `*ret_n_slots` is their number of slots. `path` is consumed, also
 * on failure.
 */
int connection_open(struct connection *connection, char *path,
		    const struct fsdp_connect_options *options,
		    int *ret_table_fd, int *ret_refs_fd, uint32_t *ret_n_slots,
		    struct error *err);

/* Set the data that a reconnect needs. Call this before the first
 * connection_call(). */
void connection_attach(struct connection *connection, const struct table *table,
		       int refs_fd, connection_orphan_fn *on_orphan,
		       void *orphan_data);

/* Close the socket without a request, and free everything. */
void connection_close(struct connection *connection);
/* Only close the descriptors: in a forked child the calls cannot be freed,
 * since another thread may have been changing them at the moment of the
 * fork. */
void connection_leave(struct connection *c);

/*
 * Send one request with a descriptor (-1: none; borrowed) and wait for its
 * reply, however long the broker takes. If the broker cannot be reached, wait
 * until reconnect_ms after the first call that noticed this. If the broker
 * refuses the request, return its error. On success the caller owns `ret`
 * (received_deinit()).
 */
int connection_call(struct connection *connection,
		    const struct request *request, int fd, struct received *ret,
		    struct error *err);

/* Make a call for the request, without sending it. On success `fd` (-1: none)
 * is consumed, and the lock is held. */
int connection_begin_call(struct connection *connection,
			  const struct request *request, int fd,
			  struct call **ret, struct error *err);

/* Tell whether the broker was restarted since we connected and does not know
 * this session yet. */
bool connection_is_outdated(const struct connection *connection);

/* Tell whether the broker has closed the socket, as far as the kernel knows
 * now. If so, the next call has to reconnect. */
bool connection_is_down(struct connection *connection);

/*
 * If the broker has closed the socket, try to reconnect, but wait only for a
 * moment, and not at all if no broker listens. Tell whether the session still
 * exists, as far as this process knows then.
 */
bool connection_look(struct connection *connection);

/* Tell whether the session is lost, so that all later calls fail. */
bool connection_is_lost(struct connection *connection);

/* Ring the doorbell, because pending bits are set (shm/refs.h). Never
 * blocks. */
void connection_ring(const struct connection *connection);

/* Ring the doorbell; and if the broker was restarted and has not heard from us
 * since, say hello to it, because it does not see our bits before. If another
 * thread is reading, that thread does so. Call this without the lock. */
void connection_ring_anew(struct connection *connection);
