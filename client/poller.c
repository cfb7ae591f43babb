/*
 * An epoll of two descriptors. It is level-triggered, so epoll_ctl() is called
 * only if something has changed.
 */
#include "client/poller.h"
#include "client/own_fd.h"
#include "proto/error.h"
#include <errno.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

int poller_open(struct poller *ret, int mark, struct error *err)
{
	struct epoll_event event = {.events = EPOLLIN};
	struct poller poller = POLLER_NULL;
	int r;

	poller.mark = mark;
	poller.fd = epoll_create1(EPOLL_CLOEXEC);
	own_fd_mark(poller.fd, mark);
	if (poller.fd >= 0)
		poller.signal_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	own_fd_mark(poller.signal_fd, mark);
	if (poller.signal_fd >= 0 && epoll_ctl(poller.fd, EPOLL_CTL_ADD,
					       poller.signal_fd, &event) == 0) {
		*ret = poller;
		return 0;
	}
	r = error_errno(err, -errno, "cannot make a descriptor to poll");
	poller_close(&poller);
	return r;
}

void poller_close(struct poller *poller)
{
	own_fd_close(poller->fd, poller->mark);
	own_fd_close(poller->signal_fd, poller->mark);
	*poller = POLLER_NULL;
}

static bool is_open(const struct poller *poller)
{
	return own_fd_is(poller->fd, poller->mark) &&
	       own_fd_is(poller->signal_fd, poller->mark);
}

static void set_socket(struct poller *poller, int fd, bool is_for_sending)
{
	struct epoll_event event = {
		.events = is_for_sending ? EPOLLIN | EPOLLOUT : EPOLLIN};
	bool is_same = fd == poller->sock_fd;

	if ((is_same && is_for_sending == poller->is_for_sending) ||
	    !is_open(poller))
		return;
	if (!is_same && poller->sock_fd >= 0)
		(void)epoll_ctl(poller->fd, EPOLL_CTL_DEL, poller->sock_fd,
				NULL);
	if (own_fd_is(fd, poller->mark))
		(void)epoll_ctl(poller->fd,
				is_same ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd,
				&event);
	poller->sock_fd = fd;
	poller->is_for_sending = is_for_sending;
}

static void set_signal(struct poller *poller, bool is_signalled)
{
	uint64_t n = 1;

	if (is_signalled == poller->is_signalled || !is_open(poller))
		return;
	poller->is_signalled = is_signalled;
	if (is_signalled)
		(void)!write(poller->signal_fd, &n, sizeof(n));
	else
		(void)!read(poller->signal_fd, &n, sizeof(n));
}

void poller_set(struct poller *poller, int sock_fd, bool is_for_sending,
		bool is_signalled)
{
	set_socket(poller, sock_fd, sock_fd >= 0 && is_for_sending);
	set_signal(poller, is_signalled);
}

void poller_forget_socket(struct poller *poller)
{
	set_socket(poller, -1, false);
}
