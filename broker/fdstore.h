/*
 * Descriptors that outlive the broker: kept by systemd's fd store, or by the
 * parent of `fsdpd --supervised`, which speaks the same protocol
 * (sd_notify: FDSTORE=1, FDNAME=, FDPOLL=0, FDSTOREREMOVE=1; LISTEN_FDS and
 * LISTEN_FDNAMES at start).
 *
 * The keeper may be busy, and then its socket is full. Once fdstore_watch() has
 * been called, nothing here waits for it: what is to be kept is refused for
 * now, all else is sent later, in order.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <uv.h>

struct error;
struct fdstore_text; /* fdstore.c */

#define FDSTORE_MAX       1000
#define FDSTORE_NAME_SIZE 32

struct fdstore_entry {
	int fd; /* owned until taken; -1 then */
	char name[FDSTORE_NAME_SIZE];
};

struct fdstore {
	bool is_kept; /* somebody keeps what we store */
	uint32_t n_stored;
	uint32_t n_inherited;
	struct fdstore_entry *inherited;
	struct sockaddr_un keeper; /* is_kept */
	socklen_t keeper_size;
	bool has_socket;
	int sock_fd;                                 /* to the keeper */
	struct fdstore_text *first_text, *last_text; /* to be sent */
	uv_poll_t poll;
	void (*on_room)(void *data); /* NULL: not watched */
	void *data;
	bool is_waiting; /* for room in the keeper's socket */
	bool is_stopped;
};

#define FDSTORE_NULL ((struct fdstore){0})

/* Take over what the service manager passed at start. */
int fdstore_open(struct fdstore *ret, struct error *err);
/* Closes inherited fds that nobody took. */
void fdstore_close(struct fdstore *store);

/* The inherited fd of that name, now the caller's; -1: none. */
int fdstore_take(struct fdstore *store, const char *name);

/* From now on do not wait for the keeper; `on_room` is called when what was
 * refused may be tried again, but not from within a call of ours. */
int fdstore_watch(struct fdstore *store, uv_loop_t *loop,
		  void (*on_room)(void *data), void *data, struct error *err);
/* Starts closing the handle of that. Idempotent. */
void fdstore_stop(struct fdstore *store);

enum fdstore_outcome {
	FDSTORE_OK = 0,
	FDSTORE_WAIT = 1, /* the keeper's socket is full: see fdstore_watch() */
};

/*
 * Have `fd` (borrowed) kept. If this gives FDSTORE_OK, it is in the keeper's
 * socket, so a crash later cannot lose it. -ENFILE: FDSTORE_MAX are kept
 * already. If nobody keeps anything, it does nothing and succeeds.
 */
int fdstore_put(struct fdstore *store, int fd, const char *name,
		struct error *err);
void fdstore_remove(struct fdstore *store, const char *name);

/* Is the keeper, if there was one, still there? False: nobody keeps anything
 * from now on. */
bool fdstore_probe(struct fdstore *store);

/* Tell the service manager: "READY=1", "STATUS=...", "STOPPING=1". */
void fdstore_notify(struct fdstore *store, const char *state);
/* The same with what is worth nothing later: not sent if it must wait. */
void fdstore_notify_now(struct fdstore *store, const char *state);
