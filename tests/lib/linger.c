/* This file makes descriptors whose last close blocks. */
#include "tests/lib/linger.h"
#include "tests/lib/check.h"
#include <arpa/inet.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int make_lingering(int *ret_end)
{
	struct sockaddr_in address = {
		.sin_family = AF_INET,
		.sin_addr = {htonl(INADDR_LOOPBACK)},
	};
	const struct linger hour = {.l_onoff = 1, .l_linger = 3600};
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	static char bytes[65536];
	socklen_t size = sizeof(address);

	if (bind(listener, (struct sockaddr *)&address, size) < 0 ||
	    listen(listener, 1) < 0 ||
	    getsockname(listener, (struct sockaddr *)&address, &size) < 0 ||
	    connect(fd, (struct sockaddr *)&address, size) < 0)
		cr_skip_test("there is no loopback network");
	*ret_end = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	close(listener);
	while (send(fd, bytes, sizeof(bytes), MSG_DONTWAIT) > 0)
		;
	cr_assert(zero(int, setsockopt(fd, SOL_SOCKET, SO_LINGER, &hour,
				       sizeof(hour))));
	return fd;
}

int put_in_socket(int fd)
{
	union {
		struct cmsghdr header;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control = {.header = {.cmsg_len = CMSG_LEN(sizeof(int)),
				.cmsg_level = SOL_SOCKET,
				.cmsg_type = SCM_RIGHTS}};
	char byte = 0;
	struct iovec iov = {&byte, 1};
	struct msghdr msg = {.msg_iov = &iov,
			     .msg_iovlen = 1,
			     .msg_control = &control,
			     .msg_controllen = sizeof(control)};
	int pair[2];

	cr_assert(zero(
		int, socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair)));
	memcpy(CMSG_DATA(&control.header), &fd, sizeof(fd));
	cr_assert(eq(long, sendmsg(pair[0], &msg, 0), 1));
	close(fd);
	close(pair[0]);
	return pair[1];
}
