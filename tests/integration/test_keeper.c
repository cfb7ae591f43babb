/*
 * Tests a keeper of the broker's descriptors that does not read its
 * notifications. Requests that make memory or files wait for it, and other
 * requests do not. The test itself is the keeper.
 */
#include "tests/lib/users.h"
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static struct sockaddr_un address = {.sun_family = AF_UNIX};
static char directory[] = "/tmp/fsdpd-keeper-XXXXXX";
static int keeper_fd;

static void open_keeper(void)
{
	cr_assert(ne(ptr, mkdtemp(directory), NULL));
	snprintf(address.sun_path, sizeof(address.sun_path), "%s/notify",
		 directory);
	keeper_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	cr_assert(zero(int, bind(keeper_fd, (struct sockaddr *)&address,
				 sizeof(address))));
}

/* Receive the next notification, and close its descriptors. */
static void receive(char *ret_text, size_t size)
{
	ssize_t n = recv(keeper_fd, ret_text, size - 1, 0);

	cr_assert(gt(long, n, 0));
	ret_text[n] = '\0';
}

/* Read notifications up to and including the first one that begins with
 * `start`. */
static void receive_until(const char *start)
{
	char text[256];

	do
		receive(text, sizeof(text));
	while (strncmp(text, start, strlen(start)) != 0);
}

/* Fill the keeper's socket, as other senders could. */
static void fill_keeper(void)
{
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	while (sendto(fd, "X=1", 3, MSG_DONTWAIT, (struct sockaddr *)&address,
		      sizeof(address)) == 3)
		;
	close(fd);
}

static void setup(void)
{
	char notify[sizeof(address.sun_path) + 16];
	const char *const env[] = {notify, NULL};
	const struct daemon_options options = {.env = env};

	open_keeper();
	snprintf(notify, sizeof(notify), "NOTIFY_SOCKET=%s", address.sun_path);
	daemon_start_with(&users_daemon, &options);
	receive_until("READY=1");
	fill_keeper();
}

static void end(void)
{
	daemon_stop(&users_daemon);
	close(keeper_fd);
	unlink(address.sun_path);
	rmdir(directory);
}

TestSuite(keeper, .init = setup, .fini = end, .timeout = 300);

static bool has_answer(const struct wire *wire)
{
	struct pollfd pollfd = {.fd = wire->fd, .events = POLLIN};

	return poll(&pollfd, 1, 0) != 0;
}

/* Alice's request makes a descriptor that the keeper must get, so it waits.
 * Bob's does not wait. */
static void check_waits(const struct request *request)
{
	const struct request ping = {.kind = MESSAGE_PING};
	struct wire *alice = wire_open(daemon_socket(&users_daemon));
	struct wire *bob = wire_open(daemon_socket(&users_daemon));

	wire_send(alice, request);
	wire_wait_status(bob, "waiters", 1);
	wire_must(bob, wire_call(bob, &ping));
	cr_expect(not(has_answer(alice)), "it would not outlive the broker");
	receive_until("FDSTORE=1");
	cr_assert(eq(int, wire_receive(alice), FRAME_OK));
	cr_expect(zero(int, alice->frame.code), "%s", wire_sentence(alice));
	wire_close(alice);
	wire_close(bob);
}

Test(keeper, that_does_not_read_makes_only_requests_for_memory_wait)
{
	struct alloc_item item;
	const struct request alloc = wire_alloc_request(&item, MIB);

	check_waits(&alloc);
}

Test(keeper, that_does_not_read_makes_only_requests_for_a_file_wait)
{
	check_waits(&(struct request){.kind = MESSAGE_TIMELINES});
}

Test(keeper, that_does_not_read_is_not_waited_for_at_the_end)
{
	struct alloc_item item;
	struct request alloc = wire_alloc_request(&item, MIB);
	struct wire *alice = wire_open(daemon_socket(&users_daemon));
	struct wire *bob = wire_open(daemon_socket(&users_daemon));

	wire_send(alice, &alloc);
	wire_wait_status(bob, "waiters", 1);
	daemon_stop(&users_daemon);
	wire_close(alice);
	wire_close(bob);
}
