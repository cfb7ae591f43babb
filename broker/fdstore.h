/*
 * Descriptors that outlive the broker: kept by systemd's fd store, or by the
 * parent of `fsdpd --supervised`, which speaks the same protocol
 * (sd_notify: FDSTORE=1, FDNAME=, FDPOLL=0, FDSTOREREMOVE=1; LISTEN_FDS and
 * LISTEN_FDNAMES at start).
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct error;

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
};

#define FDSTORE_NULL ((struct fdstore){0})

/* Take over what the service manager passed at start. */
int fdstore_open(struct fdstore *ret, struct error *err);
/* Closes inherited fds that nobody took. */
void fdstore_close(struct fdstore *store);

/* The inherited fd of that name, now the caller's; -1: none. */
int fdstore_take(struct fdstore *store, const char *name);

/*
 * Have `fd` (borrowed) kept. It is in the keeper's socket when this returns,
 * so a crash later cannot lose it. -ENFILE: FDSTORE_MAX are kept already. If
 * nobody keeps anything, it does nothing and succeeds.
 */
int fdstore_put(struct fdstore *store, int fd, const char *name,
		struct error *err);
void fdstore_remove(struct fdstore *store, const char *name);

/* Is the keeper, if there was one, still there? False: nobody keeps anything
 * from now on. */
bool fdstore_probe(struct fdstore *store);

/* Tell the service manager: "READY=1", "STATUS=...", "STOPPING=1". */
void fdstore_notify(const char *state);
