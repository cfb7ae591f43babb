/*
 * A connection with a count of users: the Client object, each tensor handle and
 * each export. The last user closes it. So Client.close() never takes away
 * memory that an array still shows.
 */
#pragma once
#include "client/fsdp.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct link {
	struct fsdp_client *client;
	_Atomic uint32_t n_users;
};

/* Connects, and makes a link with one user. It waits for a broker that is being
 * restarted, so it must be called between call_begin() and call_end(). Returns
 * 0 or a negative errno; fsdp_error() has the text. */
int link_open(const char *path, uint64_t budget, int32_t reconnect_ms,
	      struct link **ret);

static inline struct link *link_use(struct link *link)
{
	/* Relaxed: the caller has a use of its own. */
	atomic_fetch_add_explicit(&link->n_users, 1, memory_order_relaxed);
	return link;
}

/* Says that the interpreter ends: from now on no connection is closed and no
 * hold is dropped. Daemon threads may still read the memory; the broker may be
 * gone, so that it could not reply; and the kernel frees everything when the
 * process ends. */
void link_leave_open(void);
bool link_is_left_open(void);

/* Drops a user. The last one closes the connection, which waits for the broker,
 * so it must be called between call_begin_end() and call_end_end(). */
void link_close(struct link *link);
/* Does the same, but the connection is closed by a thread of its own. This
 * calls no Python, so any thread may call it, even after the interpreter has
 * ended. */
void link_drop(struct link *link);

typedef int link_end_fn(void *object);

/* Ends an object of the connection by a function that waits for the broker,
 * and returns its result. Other Python threads run meanwhile. In a signal
 * handler that interrupted a call, a thread of its own does it and this returns
 * 0: the replies may be read by the interrupted call. */
int link_end(struct link *link, link_end_fn *fn, void *object);
