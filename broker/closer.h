/*
 * Closing what clients sent: descriptors in messages, and connections, in which
 * messages with descriptors may wait.
 *
 * The last close of a file can take as long as its owner likes: memory is given
 * back page by page, a TCP socket lingers, a socket closes what was sent to it,
 * and a FUSE file asks its server. So it happens on threads, one for each user
 * that has something to close; a thread may block for ever, and then keeps
 * nobody else's files open. While a user has CLOSER_FULL descriptors that are
 * not closed yet, the broker reads none of his connections.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

struct broker;
struct error;
struct frame;

#define CLOSER_FULL 256
/* With so many, no further connection of the user is accepted. */
#define CLOSER_CROWDED 4096

struct closer {
	uv_async_t async;
	struct closer_state *state; /* outlives the broker in blocked threads */
};

/* Before anything else is done with it. */
int closer_init(struct closer *closer, struct broker *broker,
		struct error *err);
/* Starts closing its handle; closer_put() still may be called. Idempotent. */
void closer_stop(struct closer *closer);
/* After the loop has closed the handle. What is not closed yet goes on. */
void closer_deinit(struct closer *closer);

/* Close a descriptor (consumed) that this user sent. */
void closer_put(struct closer *closer, uint32_t uid, int fd);
/* A connection (consumed) that it made: shut down now, closed later. */
void closer_put_connection(struct closer *closer, uint32_t uid, int sock_fd);
/* The same with those of a frame that nobody has taken. */
void closer_put_frame(struct closer *closer, uint32_t uid, struct frame *frame);

/* Are this user's connections not to be read? Once they may be again,
 * peers_on_closed() is called. */
bool closer_is_full(const struct closer *closer, uint32_t uid);
/* Has this user (NULL: any) too many for one more connection? */
bool closer_is_crowded(const struct closer *closer, const uint32_t *uid);
/* Descriptors that are not closed yet. */
uint64_t closer_n_open(const struct closer *closer);
