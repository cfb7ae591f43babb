/*
 * The connection: requests of many threads over one socket.
 *
 * There is no thread of our own. Whoever waits for an answer while nobody
 * reads becomes the reader: it polls, receives, and hands answers to those
 * they belong to; when its own has come it passes the office on. So one
 * thread can wait in a get for what another publishes.
 *
 * When the broker goes away the reader reconnects, and every request that has
 * no answer is sent again under its number. What a broker did before it died
 * it answers from its record.
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

/* An answer that nobody waits for any more: what it granted must go back. */
typedef void connection_orphan_fn(struct answer *answer, void *data);

struct connection {
	pthread_mutex_t lock;
	struct introduction self; /* fixed once open */
	int32_t reconnect_ms;
	int sock_fd; /* -1: not connected; replaced by the reader only */
	int wake_fd; /* eventfd: the reader shall look for unsent requests */
	int doorbell_fd;
	const struct table *table;
	_Atomic uint64_t table_epoch; /* when we connected */
	int64_t connected_ms;
	uint32_t n_broken; /* connections lost in a row, soon */
	struct calls calls;
	bool is_reading;
	struct poller poller; /* for those who poll instead of waiting */
	uint32_t n_begun;     /* by connection_begin(), not collected */
	uint32_t n_landed;    /* of these: done */
	struct error lost;    /* code < 0: for good, and why */
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
 * Connect and get a session; gives the fds of state table and ref-counter
 * file, which the caller owns, and their number of slots. `path` is consumed,
 * also on failure.
 */
int connection_open(struct connection *connection, char *path,
		    const struct fsdp_connect_options *options,
		    int *ret_table_fd, int *ret_refs_fd, uint32_t *ret_n_slots,
		    struct error *err);

/* What reconnecting needs besides; before the first connection_call(). */
void connection_attach(struct connection *connection, const struct table *table,
		       int refs_fd, connection_orphan_fn *on_orphan,
		       void *orphan_data);

/* No goodbye is said. In a forked child it closes the child's fds. */
void connection_close(struct connection *connection);

/*
 * One request, with an fd (-1: none; borrowed), and its answer. Waits as long
 * as the broker takes; for a broker that is away, reconnect_ms. A refusal is
 * returned with its sentence. On success the caller owns `ret`
 * (answer_deinit()).
 */
int connection_call(struct connection *connection,
		    const struct request *request, int fd, struct answer *ret,
		    struct error *err);

/* A call for the request, not sent yet. `fd` (-1: none) is taken on success;
 * then the lock is held, too. */
int connection_begin_call(struct connection *connection,
			  const struct request *request, int fd,
			  struct call **ret, struct error *err);

/* Has a broker started since we connected, which does not know us yet? */
bool connection_is_outdated(const struct connection *connection);

/* Has the broker hung up, as far as the kernel knows now? The next call would
 * have to reconnect. */
bool connection_is_down(struct connection *connection);

/* Ring the doorbell: pending bits are set. Never blocks. */
void connection_ring(const struct connection *connection);
