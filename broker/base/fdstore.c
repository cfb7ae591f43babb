/*
 * The broker's side of the fd store. libsystemd's sd_notify() may block, so
 * notifications are sent here: as datagrams over a connected socket, for which
 * poll() reports when the keeper has read some.
 */
#include "broker/base/fdstore.h"
#include "broker/base/clock.h"
#include "broker/base/log.h"
#include "proto/error.h"
#include "proto/failpoint.h"
#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

/*
 * The kernel limits the descriptors that all processes of a user without
 * privileges have sent and nobody has received (ETOOMANYREFS). Nothing reports
 * when they are received, so the broker tries again after each RETRY_MS. After
 * PATIENCE_MS their receivers are probably stuck, and it refuses.
 */
#define RETRY_MS    20
#define PATIENCE_MS UINT64_C(2000)

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

/* Fills the list. Entry `i` gets descriptor SD_LISTEN_FDS_START + i. A name
 * that is too long is not ours, and does not match one of ours when it is
 * truncated. */
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

/* --- the keeper's socket ------------------------------------------------- */

struct fdstore_text {
	struct fdstore_text *next;
	char state[];
};

/* Reads the keeper's address. Returns false if there is no keeper, or if its
 * address is not a Unix socket. */
static bool find_keeper(struct fdstore *store)
{
	const char *path = getenv("NOTIFY_SOCKET");
	size_t size = path ? strlen(path) : 0;

	if (size < 2 || size >= sizeof(store->keeper.sun_path) ||
	    (path[0] != '/' && path[0] != '@'))
		return false;
	store->keeper = (struct sockaddr_un){.sun_family = AF_UNIX};
	memcpy(store->keeper.sun_path, path, size);
	if (path[0] == '@')
		store->keeper.sun_path[0] = '\0';
	store->keeper_size =
		(socklen_t)(offsetof(struct sockaddr_un, sun_path) + size);
	return true;
}

static int connect_keeper(struct fdstore *store)
{
	if (!store->has_socket) {
		store->sock_fd = socket(
			AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		if (store->sock_fd < 0)
			return -errno;
		store->has_socket = true;
	}
	if (connect(store->sock_fd, (struct sockaddr *)&store->keeper,
		    store->keeper_size) < 0)
		return -errno;
	return 0;
}

/* Records that the keeper is gone: this process cannot get a new one. */
static void lose_keeper(struct fdstore *store, int r)
{
	store->is_kept = false;
	log_line(LOG_LEVEL_WARNING,
		 "the process that kept our descriptors has exited (%s): fsdpd "
		 "goes on, but a crash will now lose all tensors",
		 strerror(-r));
}

static bool is_gone(int r)
{
	return r == -ECONNREFUSED || r == -ENOENT || r == -ENOTCONN ||
	       r == -ECONNRESET;
}

/* Sends a message with a descriptor, or without one if `fd` is -1. -EAGAIN: the
 * keeper's socket is full. */
static int send_once(const struct fdstore *store, const char *state, int fd)
{
	union {
		struct cmsghdr header;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control = {.header = {.cmsg_len = CMSG_LEN(sizeof(int)),
				.cmsg_level = SOL_SOCKET,
				.cmsg_type = SCM_RIGHTS}};
	struct iovec part = {(void *)(uintptr_t)state, strlen(state)};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
	ssize_t n;

	if (fd >= 0) {
		memcpy(CMSG_DATA(&control.header), &fd, sizeof(fd));
		message.msg_control = &control;
		message.msg_controllen = sizeof(control);
	}
	do
		n = sendmsg(store->sock_fd, &message,
			    MSG_DONTWAIT | MSG_NOSIGNAL);
	while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : 0;
}

/* Sends a message. It reconnects once, since the service manager may have
 * recreated its socket. */
static int send_state(struct fdstore *store, const char *state, int fd)
{
	int r = store->has_socket ? send_once(store, state, fd) : -ENOTCONN;

	if (!is_gone(r))
		return r;
	r = connect_keeper(store);
	return r < 0 ? r : send_once(store, state, fd);
}

/* --- messages sent later ------------------------------------------------- */

static void drop_first(struct fdstore *store)
{
	struct fdstore_text *text = store->first_text;

	store->first_text = text->next;
	if (!text->next)
		store->last_text = NULL;
	free(text);
}

/* Sends the messages that wait. Returns true if all were sent. */
static bool flush(struct fdstore *store)
{
	int r;

	while (store->first_text && store->is_kept) {
		r = send_state(store, store->first_text->state, -1);
		if (r == -EAGAIN)
			return false;
		if (is_gone(r))
			lose_keeper(store, r);
		drop_first(store);
	}
	while (store->first_text)
		drop_first(store);
	return true;
}

static void on_writable(uv_poll_t *poll, int status, int events)
{
	struct fdstore *store = poll->data;

	(void)status;
	(void)events;
	if (!flush(store))
		return;
	uv_poll_stop(poll);
	store->is_waiting = false;
	store->on_room(store->data);
}

static void want_room(struct fdstore *store)
{
	if (store->is_waiting || store->is_stopped || !store->on_room)
		return;
	store->is_waiting =
		uv_poll_start(&store->poll, UV_WRITABLE, on_writable) == 0;
}

static void on_retry(uv_timer_t *timer)
{
	want_room(timer->data);
}

/* Lets the message that was refused with `r` be tried again later. */
static void try_later(struct fdstore *store, int r)
{
	if (r == -EAGAIN)
		want_room(store);
	else if (!store->is_stopped &&
		 !uv_is_active((uv_handle_t *)&store->retry))
		(void)uv_timer_start(&store->retry, on_retry, RETRY_MS, 0);
}

int fdstore_watch(struct fdstore *store, uv_loop_t *loop,
		  void (*on_room)(void *data), void *data, struct error *err)
{
	int r;

	if (!store->has_socket) {
		lose_keeper(store, -ENOTCONN);
		return 0;
	}
	r = uv_poll_init(loop, &store->poll, store->sock_fd);
	if (r < 0)
		return error_set(err, r,
				 "cannot watch the socket of the "
				 "process that keeps descriptors: %s",
				 uv_strerror(r));
	(void)uv_timer_init(loop, &store->retry);
	store->poll.data = store->retry.data = store;
	store->on_room = on_room;
	store->data = data;
	return 0;
}

void fdstore_stop(struct fdstore *store)
{
	if (store->on_room && !store->is_stopped) {
		uv_close((uv_handle_t *)&store->poll, NULL);
		uv_close((uv_handle_t *)&store->retry, NULL);
	}
	store->is_stopped = true;
}

/* --- lifetime ------------------------------------------------------------ */

int fdstore_open(struct fdstore *ret, struct error *err)
{
	struct fdstore store = FDSTORE_NULL;
	char **names = NULL;
	int n;

	n = sd_listen_fds_with_names(1, &names);
	if (n < 0)
		return error_errno(
			err, n,
			"cannot take over the descriptors that were passed "
			"at start (LISTEN_FDS)");
	/* If the keeper cannot be reached, the first use reports it. */
	store.is_kept = find_keeper(&store);
	if (store.is_kept)
		(void)connect_keeper(&store);
	if (n > 0) {
		store.inherited = calloc((size_t)n, sizeof(*store.inherited));
		if (!store.inherited) {
			close_inherited(n);
			free_names(names);
			return error_nomem(err, "%d adopted descriptors", n);
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
	while (store->first_text)
		drop_first(store);
	if (store->has_socket)
		close(store->sock_fd);
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

static bool is_numbered(const char *name, const char *word)
{
	size_t size = strlen(word);

	return strncmp(name, word, size) == 0 && name[size] >= '0' &&
	       name[size] <= '9';
}

void fdstore_drop_rest(struct fdstore *store, const char *word)
{
	for (uint32_t i = 0; i < store->n_inherited; i++) {
		struct fdstore_entry *entry = &store->inherited[i];

		if (entry->fd < 0 || !is_numbered(entry->name, word))
			continue;
		fdstore_remove(store, entry->name);
		close(entry->fd);
		entry->fd = -1;
	}
}

/* --- keeping ------------------------------------------------------------- */

static int send_fd(struct fdstore *store, int fd, const char *name)
{
	char state[FDSTORE_NAME_SIZE + 64];
	int r = failpoint_fail("fdstore.put");

	if (r < 0)
		return r;
	if (!flush(store))
		return -EAGAIN;
	/* Without FDPOLL=0 systemd would poll each descriptor, and drop it on a
	 * hang-up. */
	snprintf(state, sizeof(state), "FDSTORE=1\nFDPOLL=0\nFDNAME=%s", name);
	return send_state(store, state, fd);
}

/* Returns whether a message that cannot be sent now is worth waiting for. */
static bool may_wait(struct fdstore *store, int r)
{
	uint64_t now = now_ms();

	if (r != -ETOOMANYREFS)
		return r == -EAGAIN;
	/* If nobody has tried for some time, this is another shortage. */
	if (now - store->short_since_ms >= 2 * PATIENCE_MS)
		store->short_since_ms = now;
	return now - store->short_since_ms < PATIENCE_MS;
}

/* Waits until the message may be tried again. This is only done at the start,
 * before there are clients. */
static void wait_for_keeper(const struct fdstore *store, int r)
{
	struct pollfd pollfd = {.fd = store->sock_fd, .events = POLLOUT};

	if (r == -ETOOMANYREFS)
		(void)poll(NULL, 0, RETRY_MS);
	(void)poll(&pollfd, 1, -1);
}

static int refuse(struct error *err, int r, const char *name)
{
	if (r == -ETOOMANYREFS)
		return error_set(
			err, -ENFILE,
			"cannot store descriptor \"%s\" for a "
			"restart: the messages of this user's processes "
			"hold too many descriptors; try again when they "
			"are received",
			name);
	return error_errno(
		err, r, "cannot store descriptor \"%s\" for a restart", name);
}

int fdstore_put(struct fdstore *store, int fd, const char *name,
		struct error *err)
{
	int r;

	if (!store->is_kept)
		return FDSTORE_OK;
	if (store->n_stored >= FDSTORE_MAX)
		return error_set(
			err, -ENFILE,
			"%d descriptors are kept for a restart "
			"already, which is the limit: release tensors, "
			"or use fewer access classes and bundles",
			FDSTORE_MAX);
	r = send_fd(store, fd, name);
	while (may_wait(store, r)) {
		if (store->on_room || store->is_stopped) {
			try_later(store, r);
			return FDSTORE_WAIT;
		}
		wait_for_keeper(store, r);
		r = send_fd(store, fd, name);
	}
	if (is_gone(r)) {
		lose_keeper(store, r);
		return FDSTORE_OK;
	}
	if (r < 0)
		return refuse(err, r, name);
	store->short_since_ms = 0;
	store->n_stored++;
	failpoint("fdstore.put");
	return FDSTORE_OK;
}

void fdstore_remove(struct fdstore *store, const char *name)
{
	char state[FDSTORE_NAME_SIZE + 64];

	if (!store->is_kept)
		return;
	snprintf(state, sizeof(state), "FDSTOREREMOVE=1\nFDNAME=%s", name);
	fdstore_notify(store, state);
	if (store->n_stored > 0)
		store->n_stored--;
	failpoint("fdstore.remove");
}

bool fdstore_probe(struct fdstore *store)
{
	/* Only fsdpd uses this field, so every keeper ignores it. */
	fdstore_notify_now(store, "X_FSDPD_PROBE=1");
	return store->is_kept;
}

/* --- notifications ------------------------------------------------------- */

void fdstore_notify(struct fdstore *store, const char *state)
{
	size_t size = strlen(state) + 1;
	struct fdstore_text *text;

	if (!store->is_kept)
		return;
	text = malloc(sizeof(*text) + size);
	if (!text) {
		/* If the removal of a descriptor is lost, the next start
		 * repairs that. */
		fdstore_notify_now(store, state);
		return;
	}
	text->next = NULL;
	memcpy(text->state, state, size);
	if (store->last_text)
		store->last_text->next = text;
	else
		store->first_text = text;
	store->last_text = text;
	if (!flush(store))
		want_room(store);
}

void fdstore_notify_now(struct fdstore *store, const char *state)
{
	int r;

	if (!store->is_kept || !flush(store))
		return;
	r = send_state(store, state, -1);
	if (is_gone(r))
		lose_keeper(store, r);
}
