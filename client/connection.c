#include "client/connection.h"
#include "client/own_fd.h"
#include "client/reader.h"
#include "client/reconnect.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

/* How often a request is repeated because other threads' requests used the
 * broker's space for recorded replies. */
#define MAX_CROWDED          1000
#define RECONNECT_DEFAULT_MS 10000

/* --- calls --------------------------------------------------------------- */

int connection_begin_call(struct connection *c, const struct request *request,
			  int fd, struct call **ret, struct error *err)
{
	struct call *call;
	uint8_t *body;
	size_t size;
	int r;

	r = request_encode(request, &body, &size, err);
	if (r < 0)
		return r;
	pthread_mutex_lock(&c->lock);
	call = call_take(&c->calls);
	if (!call) {
		pthread_mutex_unlock(&c->lock);
		free(body);
		return error_nomem(err, "a request");
	}
	call->kind = request->kind;
	call->fd = fd;
	call->body = body;
	call->body_size = (uint32_t)size;
	*ret = call;
	return 0;
}

/* If the wait for an earlier reply was interrupted (`ret->is_interrupted`), the
 * request is sent again, but nobody waits for the reply. */
static int call_once(struct connection *c, const struct request *request,
		     int fd, struct received *ret, struct error *err)
{
	/* The call may outlive this function, so it gets its own descriptor. */
	int own_fd = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 3);
	struct call *call;
	int r;

	ret->is_refused = false;
	if (fd >= 0 && own_fd < 0)
		return error_errno(err, -errno,
				   "cannot duplicate a descriptor");
	r = connection_begin_call(c, request, own_fd, &call, err);
	if (r < 0 && own_fd >= 0)
		(void)close(own_fd);
	if (r < 0)
		return r;
	call->is_interrupted = ret->is_interrupted;
	r = reader_run(c, call, err);
	pthread_mutex_unlock(&c->lock);
	if (r < 0)
		return r;
	r = call_decode(call, ret, err);
	ret->is_interrupted = call->is_interrupted;
	pthread_mutex_lock(&c->lock);
	call_give(&c->calls, call);
	pthread_mutex_unlock(&c->lock);
	return r;
}

int connection_call(struct connection *c, const struct request *request, int fd,
		    struct received *ret, struct error *err)
{
	const struct timespec pause = {.tv_nsec = 1000000};

	ret->is_interrupted = false;
	/* When this reply is received, all earlier ones have been received,
	 * which frees space for recorded replies. So CALL_AGAIN means that
	 * other threads used the space; try again after a pause. */
	for (int i = 0; i < MAX_CROWDED; i++) {
		int r = call_once(c, request, fd, ret, err);

		if (r != CALL_AGAIN)
			return r;
		(void)nanosleep(&pause, NULL);
	}
	return error_set(err, -EAGAIN,
			 "too many threads ask fsdpd at once on one "
			 "connection");
}

bool connection_is_lost(struct connection *c)
{
	bool is_lost;

	pthread_mutex_lock(&c->lock);
	is_lost = c->lost.code < 0;
	pthread_mutex_unlock(&c->lock);
	return is_lost;
}

static bool is_down(const struct connection *c)
{
	struct pollfd item = {.fd = c->sock_fd, .events = POLLRDHUP};

	return !own_fd_is(item.fd, c->self.mark) ||
	       (poll(&item, 1, 0) > 0 &&
		(item.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0);
}

bool connection_is_down(struct connection *c)
{
	bool r;

	pthread_mutex_lock(&c->lock);
	r = is_down(c);
	pthread_mutex_unlock(&c->lock);
	return r;
}

bool connection_look(struct connection *c)
{
	bool is_lost;

	pthread_mutex_lock(&c->lock);
	/* A thread that reads learns of the end by itself. */
	if (c->lost.code == 0 && !c->is_reading && is_down(c))
		reader_reconnect(c);
	is_lost = c->lost.code < 0;
	pthread_mutex_unlock(&c->lock);
	return !is_lost;
}

void connection_ring(const struct connection *c)
{
	uint64_t one = 1;

	/* If the write fails with EAGAIN, the counter is at its maximum, and
	 * the broker is being woken. */
	if (own_fd_is(c->doorbell_fd, c->self.mark))
		(void)!write(c->doorbell_fd, &one, sizeof(one));
}

/* Send a request, so that the broker gets our hello. If another thread reads,
 * it says hello by itself, and this thread must not wait for it: its interrupt
 * function may wait for a lock that our caller holds, such as Python's. */
static void greet(struct connection *c)
{
	const struct request ping = {.kind = MESSAGE_PING};
	struct call *call;

	if (connection_begin_call(c, &ping, -1, &call, NULL) < 0)
		return;
	if (c->is_reading || reader_run(c, call, NULL) == 0)
		call_give(&c->calls, call);
	pthread_mutex_unlock(&c->lock);
}

void connection_ring_anew(struct connection *c)
{
	connection_ring(c);
	if (connection_is_outdated(c))
		greet(c);
}

/* --- opening and closing ------------------------------------------------- */

int connection_open(struct connection *c, char *path,
		    const struct fsdp_connect_options *options,
		    int *ret_table_fd, int *ret_refs_fd, uint32_t *ret_n_slots,
		    struct error *err)
{
	struct greeting greeting;
	int r;

	*c = CONNECTION_NULL;
	c->self.path = path;
	c->self.budget = options->budget;
	c->self.interrupt = (struct interrupt){options->interrupted,
					       options->interrupted_data};
	c->reconnect_ms = options->reconnect_ms > 0 ? options->reconnect_ms
						    : RECONNECT_DEFAULT_MS;
	pthread_mutex_init(&c->lock, NULL);
	c->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (c->wake_fd < 0) {
		r = error_errno(err, -errno, "cannot make an eventfd");
		goto close;
	}
	c->self.mark = own_fd_mark_first(c->wake_fd);
	r = reconnect_first(c, &greeting, err);
	if (r < 0)
		goto close;
	c->self.session = greeting.hello.session;
	memcpy(c->self.token, greeting.hello.token, TOKEN_SIZE);
	*ret_table_fd = greeting.fds[0];
	*ret_refs_fd = greeting.fds[1];
	c->doorbell_fd = greeting.fds[2];
	own_fd_mark(*ret_refs_fd, c->self.mark);
	own_fd_mark(c->doorbell_fd, c->self.mark);
	*ret_n_slots = greeting.hello.n_slots;
	return 0;
close:
	connection_close(c);
	return r;
}

void connection_attach(struct connection *c, const struct table *table,
		       int refs_fd, connection_orphan_fn *on_orphan,
		       void *orphan_data)
{
	c->table = table;
	c->self.is_reconnect = true;
	c->self.refs_fd = refs_fd;
	c->self.doorbell_fd = c->doorbell_fd;
	c->on_orphan = on_orphan;
	c->orphan_data = orphan_data;
}

void connection_leave(struct connection *c)
{
	int fds[] = {c->sock_fd, c->wake_fd, c->doorbell_fd};

	for (size_t i = 0; i < sizeof(fds) / sizeof(*fds); i++)
		own_fd_close(fds[i], c->self.mark);
	c->sock_fd = c->wake_fd = c->doorbell_fd = -1;
	poller_close(&c->poller);
}

void connection_close(struct connection *c)
{
	connection_leave(c);
	calls_deinit(&c->calls);
	free(c->self.path);
	c->self.path = NULL;
}
