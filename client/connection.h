/*
 * The connection: requests of many threads over one socket.
 *
 * The library starts no thread for it. A thread that waits for a reply while no
 * other thread reads becomes the reader: it polls, receives, and delivers
 * replies to their calls; when its own reply has come, another waiting thread
 * becomes the reader. So one thread can wait in a get for a name that another
 * publishes.
 *
 * When the broker disappears the reader reconnects, and every request without a
 * reply is sent again under its number. The broker replies to requests that it
 * carried out before with their recorded replies.
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

/* A reply to a call that no thread waits for any more: its grants must be
 * returned. */
typedef void connection_orphan_fn(struct received *received, void *data);

struct connection {
	pthread_mutex_t lock;
	struct identity self; /* fixed once open */
	int32_t reconnect_ms;
	int64_t away_until_ms; /* how long calls wait for a broker that is away;
				* 0: it is there */
	int sock_fd; /* -1: not connected; only the reader replaces it */
	int wake_fd; /* eventfd: the reader shall look for unsent requests */
	int doorbell_fd;
	const struct table *table;
	_Atomic uint64_t table_epoch; /* when we connected */
	int64_t connected_ms;
	uint32_t n_broken; /* connections lost in a row within a short time */
	struct calls calls;
	bool is_reading;
	struct poller poller; /* for threads that poll instead of waiting */
	uint32_t n_begun;     /* by connection_begin(), not collected */
	uint32_t n_landed;    /* of these: done */
	struct error lost;    /* code < 0: failed for good, and the reason */
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
 * Connect and open a session. Gives the descriptors of the state table and the
 * ref-counter file, which the caller owns, and their number of slots. `path` is
 * consumed, also on failure.
 */
int connection_open(struct connection *connection, char *path,
		    const struct fsdp_connect_options *options,
		    int *ret_table_fd, int *ret_refs_fd, uint32_t *ret_n_slots,
		    struct error *err);

/* Further data for reconnecting; call it before the first connection_call(). */
void connection_attach(struct connection *connection, const struct table *table,
		       int refs_fd, connection_orphan_fn *on_orphan,
		       void *orphan_data);

/* Closes the socket without a request. In a forked child it closes the child's
 * descriptors. */
void connection_close(struct connection *connection);
/* Close only its descriptors: in a forked child, since another thread may have
 * been changing the calls at the moment of the fork. */
void connection_leave(struct connection *c);

/*
 * Send one request with a descriptor (-1: none; borrowed) and wait for its
 * reply, for as long as the broker takes; if the broker is away, until
 * reconnect_ms after a call first found that. A refusal is returned with its
 * sentence. On success the caller owns `ret` (received_deinit()).
 */
int connection_call(struct connection *connection,
		    const struct request *request, int fd, struct received *ret,
		    struct error *err);

/* A call for the request, which is not sent yet. On success `fd` (-1: none) is
 * consumed, and the lock is held. */
int connection_begin_call(struct connection *connection,
			  const struct request *request, int fd,
			  struct call **ret, struct error *err);

/* Was the broker restarted since we connected, so that it does not know us yet?
 */
bool connection_is_outdated(const struct connection *connection);

/* Has the broker closed the socket, as far as the kernel knows now? Then the
 * next call would have to reconnect. */
bool connection_is_down(struct connection *connection);

/* Ring the doorbell, because pending bits are set. Never blocks. */
void connection_ring(const struct connection *connection);

/* The same, and a broker that was restarted and has not heard from us since
 * gets a hello, since it cannot see our bits yet; from the thread that reads,
 * if there is one. Without the lock. */
void connection_ring_anew(struct connection *connection);
