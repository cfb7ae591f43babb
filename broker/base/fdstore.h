/*
 * The fd store keeps descriptors that outlive the broker. The keeper is
 * systemd, or the parent of `fsdpd --supervised`, which speaks the same
 * protocol (sd_notify: FDSTORE=1, FDNAME=, FDPOLL=0, FDSTOREREMOVE=1;
 * LISTEN_FDS and LISTEN_FDNAMES at start).
 *
 * If the keeper is busy, its socket may be full. After fdstore_watch() these
 * functions do not block on it: storing a descriptor is refused for now, and
 * other messages are sent later, in order. Storing is also refused for now, but
 * for some seconds at most, while the messages of this user's processes hold
 * too many descriptors.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <uv.h>

struct error;
struct fdstore_text; /* defined in fdstore.c */

#define FDSTORE_MAX       1000
#define FDSTORE_NAME_SIZE 32

struct fdstore_entry {
	int fd; /* owned until taken, then -1 */
	char name[FDSTORE_NAME_SIZE];
};

struct fdstore {
	bool is_kept; /* there is a keeper */
	uint32_t n_stored;
	uint32_t n_inherited;
	struct fdstore_entry *inherited;
	struct sockaddr_un keeper; /* valid if is_kept */
	socklen_t keeper_size;
	bool has_socket;
	/* The socket that is connected to the keeper. */
	int sock_fd;
	/* Messages that are still to be sent. */
	struct fdstore_text *first_text, *last_text;
	uv_poll_t poll;
	uv_timer_t retry;
	/* Since when messages hold too many descriptors; 0: they do not. */
	uint64_t short_since_ms;
	void (*on_room)(void *data); /* NULL: the socket is not watched */
	void *data;
	bool is_waiting; /* polls for space in the keeper's socket */
	bool is_stopped;
};

#define FDSTORE_NULL ((struct fdstore){0})

/* Takes over the descriptors that the service manager passed at start. */
int fdstore_open(struct fdstore *ret, struct error *err);
/* Closes inherited fds that were not taken. */
void fdstore_close(struct fdstore *store);

/* Returns the inherited fd of that name, which the caller then owns; -1: there
 * is no such fd. */
int fdstore_take(struct fdstore *store, const char *name);

/* Drops the inherited fds whose name is this word and a number, and that were
 * not taken. */
void fdstore_drop_rest(struct fdstore *store, const char *word);

/* Watches the keeper's socket: from now on calls do not block on it. `on_room`
 * is called when refused operations may be tried again, but never from within a
 * call of these functions. */
int fdstore_watch(struct fdstore *store, uv_loop_t *loop,
		  void (*on_room)(void *data), void *data, struct error *err);
/* Starts closing the handle of the watch. Idempotent. */
void fdstore_stop(struct fdstore *store);

enum fdstore_outcome {
	FDSTORE_OK = 0,
	FDSTORE_WAIT = 1, /* it is refused for now: see fdstore_watch() */
};

/*
 * Stores `fd` (borrowed) with the keeper. FDSTORE_OK: it is in the keeper's
 * socket, so a later crash cannot lose it. -ENFILE: FDSTORE_MAX descriptors are
 * stored already, or messages have held too many for too long. Without a keeper
 * it has no effect and succeeds.
 */
int fdstore_put(struct fdstore *store, int fd, const char *name,
		struct error *err);
void fdstore_remove(struct fdstore *store, const char *name);

/* Returns whether the keeper is still there. If it was lost, the broker has no
 * keeper from now on. */
bool fdstore_probe(struct fdstore *store);

/* Sends a message to the service manager: "READY=1", "STATUS=...",
 * "STOPPING=1". */
void fdstore_notify(struct fdstore *store, const char *state);
/* Sends a message that would be useless later: it is dropped if the socket is
 * full. */
void fdstore_notify_now(struct fdstore *store, const char *state);
