/*
 * Closing of descriptors that clients sent in messages, and of connections, in
 * which unread messages may hold descriptors.
 *
 * The last close of a file can take arbitrarily long: memory is freed page by
 * page, a TCP socket lingers, a socket closes the descriptors in its queue, and
 * a FUSE file asks its server. So files are closed on threads, one for each
 * user with something to close; a thread may block for ever, but then delays
 * only the files of its user. A user's slow closes get a fifth of a CPU.
 *
 * A descriptor that waits to be closed keeps memory, which is charged to no
 * user, and whose size cannot be known: a socket may hold memory files, and the
 * sender of a file may make it larger. So a user may have few such descriptors.
 * While there are CLOSER_FULL of them, the broker reads none of the user's
 * connections. From Linux 6.16 on it also refuses descriptors that are sent to
 * these connections: they stay with their sender.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

struct error;
struct frame;

#define CLOSER_FULL 8
/* With this number of descriptors or more, new connections of the user are
 * refused. */
#define CLOSER_CROWDED 4096

struct closer {
	uv_async_t async;
	uv_timer_t retry;
	struct closer_state *state; /* outlives the broker in blocked threads */
	void (*on_change)(void *data, uint32_t uid);
	void *data;
};

/* Call it before any other function. The loop calls `on_change` when the number
 * of a user's descriptors reaches CLOSER_FULL, or falls below it. */
int closer_init(struct closer *closer, uv_loop_t *loop,
		void (*on_change)(void *data, uint32_t uid), void *data,
		struct error *err);
/* Starts closing the handles; closer_put() may still be called. Idempotent. */
void closer_stop(struct closer *closer);
/* Frees the closer. Call it after the loop has closed the handles. Threads
 * continue to close files. */
void closer_deinit(struct closer *closer);

/* Closes a descriptor (consumed) that this user sent. */
void closer_put(struct closer *closer, uint32_t uid, int fd);
/* Shuts down a connection (consumed) of this user now, and closes it later. */
void closer_put_connection(struct closer *closer, uint32_t uid, int sock_fd);
/* Closes the descriptors of a frame that were not taken from it. */
void closer_put_frame(struct closer *closer, uint32_t uid, struct frame *frame);

/* Returns whether this user's connections must not be read. `on_change` is
 * called when they may be read again. */
bool closer_is_full(const struct closer *closer, uint32_t uid);
/* Returns whether this is the case for any user. */
bool closer_is_any_full(const struct closer *closer);
/* Returns whether this user has too many descriptors for one more
 * connection. */
bool closer_is_crowded(const struct closer *closer, uint32_t uid);
/* Returns the number of descriptors that are not closed yet. */
uint64_t closer_n_open(const struct closer *closer);
