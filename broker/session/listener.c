/*
 * The listening socket is made here, or by the process that starts the broker
 * and keeps the socket.
 *
 * All users may connect: credentials decide about access, not the mode of the
 * socket file.
 */
#include "broker/session/listener.h"
#include "broker/base/deadline.h"
#include "broker/session/peer.h"
#include "broker/session/receiver.h"
#include "broker/session/sessions.h"
#include "proto/error.h"
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define ACCEPTS_PER_EVENT 16
/* The pause after which connections are accepted again, if not even the spare
 * descriptor was left. */
#define PAUSE_MS 10

/* --- binding ------------------------------------------------------------- */

static int fill_address(const char *path, struct sockaddr_un *ret,
			struct error *err)
{
	*ret = (struct sockaddr_un){.sun_family = AF_UNIX};
	if (!*path)
		return error_set(err, -EINVAL,
				 "cannot listen: the path of the socket is "
				 "empty; name one, or leave --socket out");
	if (strlen(path) >= sizeof(ret->sun_path))
		return error_set(err, -ENAMETOOLONG,
				 "cannot listen at %s: a socket's path has at "
				 "most %zu bytes; name a shorter one",
				 path, sizeof(ret->sun_path) - 1);
	strcpy(ret->sun_path, path);
	return 0;
}

/* Make only the last directory; the administrator makes the others. */
static int make_directory(const char *path, struct error *err)
{
	struct sockaddr_un address;
	const char *directory;
	int r;

	r = fill_address(path, &address, err);
	if (r < 0)
		return r;
	directory = dirname(address.sun_path);
	if (mkdir(directory, 0755) < 0 && errno != EEXIST)
		return error_set(err, -errno,
				 "cannot make the directory %s for the socket: "
				 "%s; name a socket that you may make with "
				 "--socket or FSDP_SOCKET",
				 directory, strerrordesc_np(errno));
	return 0;
}

/* Remove the socket file, if there is one and no process listens there. */
static int remove_stale(const struct sockaddr_un *address, struct error *err)
{
	struct stat st;
	int fd, r;

	if (lstat(address->sun_path, &st) < 0)
		return errno == ENOENT
			       ? 0
			       : error_errno(err, -errno, "cannot inspect %s",
					     address->sun_path);
	if (!S_ISSOCK(st.st_mode))
		return error_set(err, -EEXIST,
				 "%s exists and is not a socket; remove it, or "
				 "choose another path",
				 address->sun_path);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return error_errno(err, -errno, "cannot make a socket");
	r = connect(fd, (const struct sockaddr *)address, sizeof(*address)) < 0
		    ? -errno
		    : 0;
	close(fd);
	if (r != -ECONNREFUSED)
		return error_set(err, -EADDRINUSE,
				 "another program answers on %s; stop it, or "
				 "choose another path",
				 address->sun_path);
	if (unlink(address->sun_path) < 0)
		return error_errno(err, -errno,
				   "cannot remove the stale socket %s",
				   address->sun_path);
	return 0;
}

static int bind_and_listen(int fd, const struct sockaddr_un *address,
			   struct error *err)
{
	if (bind(fd, (const struct sockaddr *)address, sizeof(*address)) < 0)
		return error_set(err, -errno,
				 "cannot make the socket %s: %s; name one that "
				 "you may make with --socket or FSDP_SOCKET",
				 address->sun_path, strerrordesc_np(errno));
	/* Whoever owns the directory may have put a link there meanwhile. */
	if (fchmodat(AT_FDCWD, address->sun_path, 0666, AT_SYMLINK_NOFOLLOW) <
	    0)
		return error_errno(err, -errno, "cannot open %s to all users",
				   address->sun_path);
	if (listen(fd, SOMAXCONN) < 0)
		return error_errno(err, -errno, "cannot listen on %s",
				   address->sun_path);
	return 0;
}

int listener_bind(const char *path, int *ret_fd, struct error *err)
{
	struct sockaddr_un address;
	int fd, r;

	r = fill_address(path, &address, err);
	if (r == 0)
		r = make_directory(path, err);
	if (r == 0)
		r = remove_stale(&address, err);
	if (r < 0)
		return r;
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return error_errno(err, -errno, "cannot make a socket");
	r = bind_and_listen(fd, &address, err);
	if (r < 0) {
		close(fd);
		return r;
	}
	*ret_fd = fd;
	return 0;
}

/* --- accepting ----------------------------------------------------------- */

static int open_spare(void)
{
	return open("/dev/null", O_RDONLY | O_CLOEXEC);
}

static void on_event(uv_poll_t *poll, int status, int events);

static void on_pause_over(void *data, uint32_t index)
{
	struct listener *listener = data;

	(void)index;
	if (listener->is_open)
		(void)uv_poll_start(&listener->poll, UV_READABLE, on_event);
}

/* Accept nothing for a while. The socket stays readable, and would otherwise
 * keep the loop from waiting. */
static void pause_accepting(struct sessions *sessions)
{
	struct listener *listener = &sessions->listener;
	struct deadline deadline = {
		.at_ms = now_ms() + PAUSE_MS,
		.fn = on_pause_over,
		.data = listener,
		.position = &listener->pause_position,
	};

	if (deadlines_add(&sessions->base->deadlines, &deadline, NULL) == 0)
		uv_poll_stop(&listener->poll);
}

/* Accept and close the first connection in the queue, since no descriptor is
 * left and the connection would otherwise keep the socket readable. */
static void turn_away(struct sessions *sessions)
{
	struct listener *listener = &sessions->listener;
	int fd;

	if (!listener->is_full_noted)
		log_line(LOG_LEVEL_ERROR,
			 "cannot accept a connection: no descriptors are left; "
			 "raise LimitNOFILE (this is logged once)");
	listener->is_full_noted = true;
	if (listener->spare_fd >= 0)
		close(listener->spare_fd);
	fd = accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC);
	if (fd >= 0)
		closer_put_connection(&sessions->base->closer, OVERFLOW_UID,
				      fd);
	else
		pause_accepting(sessions);
	listener->spare_fd = open_spare();
}

static bool accept_one(struct sessions *sessions)
{
	struct listener *listener = &sessions->listener;
	struct error err = ERROR_NULL;
	int fd;

	/* The number of the spare descriptor becomes free only when the closer
	 * has closed the connection that was turned away. */
	if (listener->spare_fd < 0)
		listener->spare_fd = open_spare();
	fd = accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (fd < 0 && (errno == EMFILE || errno == ENFILE)) {
		turn_away(sessions);
		return false;
	}
	if (fd < 0)
		return false;
	if (peer_new(sessions, fd, receiver_read, &err) < 0)
		sessions->n_dropped_peers++;
	return true;
}

void listener_update(struct sessions *sessions)
{
	struct listener *listener = &sessions->listener;
	bool is_full = closer_is_any_full(&sessions->base->closer);
	const int has_fds = !is_full;

	if (listener->is_without_fds == is_full)
		return;
	listener->is_without_fds = is_full;
	(void)setsockopt(listener->fd, SOL_SOCKET, SO_PASSRIGHTS, &has_fds,
			 sizeof(has_fds));
}

static void on_event(uv_poll_t *poll, int status, int events)
{
	struct sessions *sessions = poll->data;

	(void)events;
	if (status < 0)
		return;
	meter_begin(&sessions->base->loop.meter);
	listener_update(sessions);
	for (int i = 0; i < ACCEPTS_PER_EVENT && accept_one(sessions); i++)
		;
	(void)meter_end(&sessions->base->loop.meter, METER_OTHER);
}

static int check_inherited(int fd, struct error *err)
{
	int type = 0, is_listening = 0;
	socklen_t size = sizeof(int);

	if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) < 0 ||
	    getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &is_listening, &size) < 0)
		return error_errno(err, -errno,
				   "cannot use the inherited descriptor");
	if (type != SOCK_SEQPACKET || !is_listening)
		return error_set(err, -EPROTOTYPE,
				 "the inherited socket does not listen for "
				 "SOCK_SEQPACKET; use ListenSequentialPacket= "
				 "in the socket unit");
	return 0;
}

/* Log the path of the socket. The path of an inherited socket is not in the
 * options. */
static void log_path(int fd)
{
	struct sockaddr_un address = {0};
	socklen_t size = sizeof(address);

	if (getsockname(fd, (struct sockaddr *)&address, &size) == 0)
		log_line(LOG_LEVEL_INFO, "listening at %.*s",
			 (int)sizeof(address.sun_path), address.sun_path);
}

static int start(struct sessions *sessions, struct error *err)
{
	struct listener *listener = &sessions->listener;
	const int on = 1;
	int r;

	/* Accepted sockets inherit the option, so that every hello
	 * carries credentials. */
	if (setsockopt(listener->fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) <
	    0)
		return error_errno(err, -errno,
				   "cannot enable credentials on a socket");
	r = uv_poll_init(&sessions->base->loop.uv, &listener->poll,
			 listener->fd);
	if (r < 0)
		return error_set(err, r, "cannot watch the socket: %s",
				 uv_strerror(r));
	listener->poll.data = sessions;
	listener->is_open = true;
	r = uv_poll_start(&listener->poll, UV_READABLE, on_event);
	if (r < 0)
		return error_set(err, r, "cannot watch the socket: %s",
				 uv_strerror(r));
	log_path(listener->fd);
	return 0;
}

int listener_open(struct sessions *sessions, const char *path, int listen_fd,
		  struct error *err)
{
	struct listener *listener = &sessions->listener;
	int r;

	listener->spare_fd = open_spare();
	if (listen_fd >= 0) {
		listener->fd = listen_fd;
		r = check_inherited(listen_fd, err);
		return r < 0 ? r : start(sessions, err);
	}
	r = listener_bind(path, &listener->fd, err);
	if (r < 0)
		return r;
	listener->path = strdup(path);
	if (!listener->path) {
		(void)unlink(path);
		return error_nomem(err, "a path");
	}
	return start(sessions, err);
}

void listener_close(struct listener *listener)
{
	if (listener->is_open)
		uv_close((uv_handle_t *)&listener->poll, NULL);
	listener->is_open = false;
	if (listener->path)
		(void)unlink(listener->path);
	free(listener->path);
	listener->path = NULL;
	if (listener->fd >= 0)
		close(listener->fd);
	if (listener->spare_fd >= 0)
		close(listener->spare_fd);
	listener->fd = listener->spare_fd = -1;
}
