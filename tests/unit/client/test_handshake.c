/* Tests what a client does while the broker takes no descriptors. */
#include "broker/session/peer.h"
#include "client/clock.h"
#include "client/handshake.h"
#include "proto/error.h"
#include "proto/frame.h"
#include "tests/lib/check.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static char path[64];
static int listener;

/* Make a listening socket that permits no descriptors before a connection is
 * accepted. */
static void setup(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	const int off = 0;

	snprintf(path, sizeof(path), "/tmp/handshake.%d", (int)getpid());
	strcpy(address.sun_path, path);
	listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (setsockopt(listener, SOL_SOCKET, SO_PASSRIGHTS, &off, sizeof(off)) <
	    0)
		cr_skip_test("the kernel cannot refuse descriptors");
	cr_assert(zero(int, bind(listener, (struct sockaddr *)&address,
				 sizeof(address))));
	cr_assert(zero(int, listen(listener, 1)));
}

static void teardown(void)
{
	(void)unlink(path);
	close(listener);
}

TestSuite(handshake, .init = setup, .fini = teardown, .timeout = 300);

static int reconnect(int64_t deadline_ms, struct error *err)
{
	struct identity self = {.path = path, .is_reconnect = true};
	struct greeting greeting;
	int r;

	self.refs_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	self.doorbell_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	r = handshake_try(&self, deadline_ms, &greeting, err);
	close(self.refs_fd);
	close(self.doorbell_fd);
	return r;
}

/* Accept a connection, allow descriptors, and receive one frame. */
static void *serve(void *data)
{
	static uint8_t buffer[FRAME_MAX_SIZE];
	int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	int *ret_n_fds = data;
	const int on = 1;
	struct frame frame;
	char byte;

	(void)setsockopt(fd, SOL_SOCKET, SO_PASSRIGHTS, &on, sizeof(on));
	(void)recv(fd, &byte, 1, MSG_PEEK); /* wait for it */
	if (frame_recv(fd, buffer, &frame, NULL, NULL) == FRAME_OK) {
		*ret_n_fds = frame.n_fds;
		frame_close_fds(&frame);
	}
	close(fd);
	return NULL;
}

Test(handshake, waits_until_the_broker_accepts_descriptors)
{
	struct error err = ERROR_NULL;
	pthread_t thread;
	int n_fds = -1;

	cr_assert(zero(int, pthread_create(&thread, NULL, serve, &n_fds)));
	/* The hello is received and not answered. */
	cr_expect(eq(int, reconnect(clock_now_ms() + 50000, &err),
		     HANDSHAKE_AGAIN));
	cr_expect(eq(int, err.code, -ECONNRESET), "%s", err.msg);
	(void)pthread_join(thread, NULL);
	cr_expect(eq(int, n_fds, 2));
}

Test(handshake, reports_that_the_broker_accepts_no_descriptors)
{
	struct error err = ERROR_NULL;

	cr_expect(
		eq(int, reconnect(clock_now_ms() + 20, &err), HANDSHAKE_AGAIN));
	cr_expect(eq(int, err.code, -EAGAIN));
	cr_expect(ne(ptr, strstr(err.msg, "accepts no descriptors"), NULL),
		  "%s", err.msg);
}
