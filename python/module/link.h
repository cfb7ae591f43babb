/*
 * A connection that is counted: the Client object, each tensor handle and each
 * export keep it, and the last one of them closes it. So Client.close() never
 * takes memory away that an array still shows.
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

/* One user. Waits for a broker that is being restarted, so call it between
 * call_begin() and call_end(). A negative errno; fsdp_error() has the text. */
int link_open(const char *path, uint64_t budget, int32_t reconnect_ms,
	      struct link **ret);

static inline struct link *link_use(struct link *link)
{
	/* Relaxed: the caller has a use of its own. */
	atomic_fetch_add_explicit(&link->n_users, 1, memory_order_relaxed);
	return link;
}

/* The interpreter ends: from now on no connection is closed and no hold is
 * dropped. Daemon threads may still read the memory, the broker, which would
 * have to reply, may be gone, and the kernel ends all of it in a moment. */
void link_leave_open(void);
bool link_is_left_open(void);

/* The last user closes the connection. Calls no Python, so that any thread may
 * call it, also after the interpreter's end. */
void link_drop(struct link *link);
