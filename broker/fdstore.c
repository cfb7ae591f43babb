/*
 * The fd store as the broker sees it: libsystemd speaks the protocol, here is
 * only what it does not do, which is to remember names and to count.
 */
#include "broker/fdstore.h"
#include "broker/broker.h"
#include "proto/error.h"
#include "proto/point.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

static bool is_listener(const char *name)
{
	return strcmp(name, "listen") == 0;
}

static void free_names(char **names)
{
	char **name;

	for (name = names; name && *name; name++)
		free(*name);
	free(names);
}

/* Entry `i` gets descriptor SD_LISTEN_FDS_START + i. A name that is too long
 * is none of ours; cut off it still matches nothing. */
static void fill(struct fdstore *store, char **names, uint32_t n)
{
	uint32_t i;

	for (i = 0; i < n; i++) {
		struct fdstore_entry *entry = &store->inherited[i];

		entry->fd = SD_LISTEN_FDS_START + (int)i;
		snprintf(entry->name, sizeof(entry->name), "%s",
			 names && names[i] ? names[i] : "unknown");
		/* The service manager's sockets are not in the store. */
		if (!is_listener(entry->name))
			store->n_stored++;
	}
	store->n_inherited = n;
}

static void close_inherited(int n)
{
	int i;

	for (i = 0; i < n; i++)
		close(SD_LISTEN_FDS_START + i);
}

int fdstore_open(struct fdstore *ret, struct error *err)
{
	struct fdstore store = FDSTORE_NULL;
	const char *notify = getenv("NOTIFY_SOCKET");
	char **names = NULL;
	int n;

	n = sd_listen_fds_with_names(1, &names);
	if (n < 0)
		return error_errno(err, n,
				   "take over the descriptors that were passed "
				   "at start (LISTEN_FDS)");
	store.is_kept = notify && *notify;
	if (n > 0) {
		store.inherited = calloc((size_t)n, sizeof(*store.inherited));
		if (!store.inherited) {
			close_inherited(n);
			free_names(names);
			return error_set(err, -ENOMEM,
					 "no memory to take over %d "
					 "descriptors",
					 n);
		}
		fill(&store, names, (uint32_t)n);
	}
	free_names(names);
	*ret = store;
	return 0;
}

void fdstore_close(struct fdstore *store)
{
	uint32_t i;

	for (i = 0; i < store->n_inherited; i++) {
		if (store->inherited[i].fd >= 0)
			close(store->inherited[i].fd);
	}
	free(store->inherited);
	*store = FDSTORE_NULL;
}

int fdstore_take(struct fdstore *store, const char *name)
{
	uint32_t i;

	for (i = 0; i < store->n_inherited; i++) {
		struct fdstore_entry *entry = &store->inherited[i];
		int fd = entry->fd;

		if (fd < 0 || strcmp(entry->name, name) != 0)
			continue;
		entry->fd = -1;
		return fd;
	}
	return -1;
}

/* The keeper is gone for good: nobody can bring it back for this process. */
static void lose_keeper(struct fdstore *store, int r)
{
	store->is_kept = false;
	broker_log(LOG_LEVEL_WARNING,
		   "who kept our descriptors is gone (%s): going on, but a "
		   "crash will now lose all tensors",
		   strerror(-r));
}

static bool is_gone(int r)
{
	return r == -ECONNREFUSED || r == -ENOENT || r == -ENOTCONN;
}

static int send_fd(int fd, const char *name)
{
	char state[FDSTORE_NAME_SIZE + 64];
	int r = point_fail("fdstore.put");

	if (r < 0)
		return r;
	/* FDPOLL=0: systemd would drop a descriptor whose other end hangs
	 * up, and look at each of them in its loop. */
	snprintf(state, sizeof(state), "FDSTORE=1\nFDPOLL=0\nFDNAME=%s", name);
	return sd_pid_notify_with_fds(0, 0, state, &fd, 1);
}

int fdstore_put(struct fdstore *store, int fd, const char *name,
		struct error *err)
{
	int r;

	if (!store->is_kept)
		return 0;
	if (store->n_stored >= FDSTORE_MAX)
		return error_set(
			err, -ENFILE,
			"%d descriptors are kept for a restart "
			"already, which is the limit: release tensors, "
			"or use fewer access classes and bundles",
			FDSTORE_MAX);
	r = send_fd(fd, name);
	if (is_gone(r)) {
		lose_keeper(store, r);
		return 0;
	}
	if (r < 0)
		return error_errno(err, r, "have descriptor \"%s\" kept", name);
	store->n_stored++;
	point("fdstore.put");
	return 0;
}

void fdstore_remove(struct fdstore *store, const char *name)
{
	if (!store->is_kept)
		return;
	(void)sd_pid_notifyf(0, 0, "FDSTOREREMOVE=1\nFDNAME=%s", name);
	if (store->n_stored > 0)
		store->n_stored--;
	point("fdstore.remove");
}

bool fdstore_probe(struct fdstore *store)
{
	int r = 0;

	/* A field of our own, which every keeper passes over. */
	if (store->is_kept)
		r = sd_notify(0, "X_FSDPD_PROBE=1");
	if (is_gone(r))
		lose_keeper(store, r);
	return store->is_kept;
}

void fdstore_notify(const char *state)
{
	(void)sd_notify(0, state);
}
