/*
 * Closing what clients sent: descriptors in messages, and connections, in which
 * unread messages may hold descriptors.
 *
 * The last close of a file can take arbitrarily long: memory is freed page by
 * page, a TCP socket lingers, a socket closes the descriptors in its queue, and
 * a FUSE file asks its server. So files are closed on threads, one for each
 * user with something to close; a thread may block for ever, but then delays
 * only the files of its user. While a user has CLOSER_FULL descriptors that are
 * not closed yet, the broker reads none of the user's connections.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

struct error;
struct frame;

#define CLOSER_FULL 256
/* From this number on, connections of the user are refused. */
#define CLOSER_CROWDED 4096

struct closer {
	uv_async_t async;
	struct closer_state *state; /* outlives the broker in blocked threads */
	void (*on_closed)(void *data);
	void *data;
};

/* Call it before any other function. The loop calls `on_closed` when a user has
 * fewer than CLOSER_FULL descriptors again. */
int closer_init(struct closer *closer, uv_loop_t *loop,
		void (*on_closed)(void *data), void *data, struct error *err);
/* Start closing the handle; closer_put() may still be called. Idempotent. */
void closer_stop(struct closer *closer);
/* Call it after the loop has closed the handle. Closing of files continues. */
void closer_deinit(struct closer *closer);

/* Close a descriptor (consumed) that this user sent. */
void closer_put(struct closer *closer, uint32_t uid, int fd);
/* Shut down a connection (consumed) of this user now, and close it later. */
void closer_put_connection(struct closer *closer, uint32_t uid, int sock_fd);
/* Close those descriptors of a frame that were not taken from it. */
void closer_put_frame(struct closer *closer, uint32_t uid, struct frame *frame);

/* Should this user's connections be left unread? When they may be read again,
 * `on_closed` is called. */
bool closer_is_full(const struct closer *closer, uint32_t uid);
/* Has this user (NULL: any user) too many for one more connection? */
bool closer_is_crowded(const struct closer *closer, const uint32_t *uid);
/* Descriptors that are not closed yet. */
uint64_t closer_n_open(const struct closer *closer);
