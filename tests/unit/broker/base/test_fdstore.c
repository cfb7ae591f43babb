/*
 * Tests what the fd store sends its keeper, and what it takes over from it. The
 * test itself is the keeper.
 */
#include "broker/base/fdstore.h"
#include "proto/error.h"
#include "shm/memfd.h"
#include "tests/lib/check.h"
#include "tests/unit/broker/loop_fixture.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

struct keeper {
	char directory[32];
	struct sockaddr_un address;
	int fd;
};

static void keeper_open(struct keeper *keeper)
{
	strcpy(keeper->directory, "/tmp/test-fdstore-XXXXXX");
	cr_assert(mkdtemp(keeper->directory) != NULL);
	keeper->address = (struct sockaddr_un){.sun_family = AF_UNIX};
	snprintf(keeper->address.sun_path, sizeof(keeper->address.sun_path),
		 "%s/notify", keeper->directory);
	keeper->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	cr_assert(
		zero(int, bind(keeper->fd, (struct sockaddr *)&keeper->address,
			       sizeof(keeper->address))));
	setenv("NOTIFY_SOCKET", keeper->address.sun_path, 1);
}

static void keeper_close(struct keeper *keeper)
{
	if (keeper->fd >= 0)
		close(keeper->fd);
	keeper->fd = -1;
	unlink(keeper->address.sun_path);
	rmdir(keeper->directory);
}

/* Receive the next notification. Returns the descriptor that came with it, or
 * -1. */
static int keeper_receive(struct keeper *keeper, char *ret_text, size_t size)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int)) + 64];
	} control;
	struct iovec part = {ret_text, size - 1};
	struct msghdr message = {
		.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control),
	};
	struct cmsghdr *c;
	int fd = -1;
	ssize_t n = recvmsg(keeper->fd, &message, MSG_DONTWAIT);

	cr_assert(ge(long, n, 0));
	ret_text[n] = '\0';
	for (c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c)) {
		if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
			memcpy(&fd, CMSG_DATA(c), sizeof(fd));
	}
	return fd;
}

static int make_file(void)
{
	int fd = -1;

	cr_assert(zero(int, memfd_create_sealed("x", 4096, MEMFD_SEAL_CLOSED,
						&fd, NULL)));
	return fd;
}

static ino_t inode(int fd)
{
	struct stat status;

	cr_assert(zero(int, fstat(fd, &status)));
	return status.st_ino;
}

Test(fdstore, puts_and_removes_by_name)
{
	struct fdstore store = FDSTORE_NULL;
	struct keeper keeper;
	char text[256];
	int fd = make_file(), got;

	keeper_open(&keeper);
	cr_assert(zero(int, fdstore_open(&store, NULL)));
	cr_expect(store.is_kept);
	cr_assert(zero(int, fdstore_put(&store, fd, "c7", NULL)));
	cr_expect(eq(u32, store.n_stored, 1));
	got = keeper_receive(&keeper, text, sizeof(text));
	cr_expect(eq(str, text, "FDSTORE=1\nFDPOLL=0\nFDNAME=c7"));
	cr_assert(ge(int, got, 0));
	cr_expect(eq(ulong, inode(got), inode(fd)));
	fdstore_remove(&store, "c7");
	cr_expect(zero(u32, store.n_stored));
	cr_expect(eq(int, keeper_receive(&keeper, text, sizeof(text)), -1));
	cr_expect(eq(str, text, "FDSTOREREMOVE=1\nFDNAME=c7"));
	close(got);
	close(fd);
	fdstore_close(&store);
	keeper_close(&keeper);
}

Test(fdstore, refuses_more_than_the_limit)
{
	struct fdstore store = FDSTORE_NULL;
	struct error err = ERROR_NULL;
	struct keeper keeper;

	keeper_open(&keeper);
	cr_assert(zero(int, fdstore_open(&store, NULL)));
	store.n_stored = FDSTORE_MAX;
	cr_expect(eq(int, fdstore_put(&store, 0, "c1", &err), -ENFILE));
	cr_expect(strstr(err.msg, "1000 descriptors") != NULL);
	fdstore_close(&store);
	keeper_close(&keeper);
}

/* Lets the kernel say that messages hold too many descriptors. */
static void hold_too_many(const char *when)
{
#ifndef FSDP_TEST_POINTS
	cr_skip_test("built without FSDP_TEST_POINTS");
#endif
	setenv("FSDP_FAIL_AT", when, 1);
}

Test(fdstore, the_start_waits_while_messages_hold_too_many_descriptors)
{
	struct fdstore store = FDSTORE_NULL;
	struct keeper keeper;

	hold_too_many("fdstore.put:1:ETOOMANYREFS");
	keeper_open(&keeper);
	cr_assert(zero(int, fdstore_open(&store, NULL)));
	cr_expect(eq(int, fdstore_put(&store, 0, "c1", NULL), FDSTORE_OK));
	cr_expect(eq(u32, store.n_stored, 1));
	fdstore_close(&store);
	keeper_close(&keeper);
}

Test(fdstore, without_a_keeper_calls_succeed_but_store_no_descriptors)
{
	struct fdstore store = FDSTORE_NULL;

	unsetenv("NOTIFY_SOCKET");
	cr_assert(zero(int, fdstore_open(&store, NULL)));
	cr_expect(not(store.is_kept));
	cr_expect(zero(int, fdstore_put(&store, 0, "c1", NULL)));
	cr_expect(zero(u32, store.n_stored));
	fdstore_remove(&store, "c1");
	fdstore_notify(&store, "READY=1");
	cr_expect(eq(int, fdstore_take(&store, "catalog"), -1));
	fdstore_close(&store);
}

Test(fdstore, continues_without_storing_after_the_keeper_has_died)
{
	struct fdstore store = FDSTORE_NULL;
	struct keeper keeper;

	keeper_open(&keeper);
	cr_assert(zero(int, fdstore_open(&store, NULL)));
	close(keeper.fd);
	keeper.fd = -1;
	cr_expect(zero(int, fdstore_put(&store, 0, "c1", NULL)));
	cr_expect(not(store.is_kept));
	fdstore_close(&store);
	keeper_close(&keeper);
}

/* Run in a process of its own, whose descriptors from 3 on are `fds`. */
static int inherit(const int *fds, int n, const char *names)
{
	struct fdstore store = FDSTORE_NULL;
	char text[16];
	int i, fd;

	for (i = 0; i < n; i++) {
		int high = fcntl(fds[i], F_DUPFD, 100);

		dup2(high, 3 + i);
		close(high);
	}
	snprintf(text, sizeof(text), "%d", (int)getpid());
	setenv("LISTEN_PID", text, 1);
	snprintf(text, sizeof(text), "%d", n);
	setenv("LISTEN_FDS", text, 1);
	setenv("LISTEN_FDNAMES", names, 1);
	if (fdstore_open(&store, NULL) < 0 || getenv("LISTEN_FDS"))
		return 1;
	if (store.n_inherited != 3 || store.n_stored != 2)
		return 2;
	if (fdstore_take(&store, "c1") != 4 || fdstore_take(&store, "c1") != -1)
		return 3;
	if (fdstore_take(&store, "nothing") != -1)
		return 4;
	fd = fdstore_take(&store, "listen");
	if (fd != 3 || !(fcntl(fd, F_GETFD) & FD_CLOEXEC))
		return 5;
	fdstore_close(&store);
	/* The store closes descriptors that the broker did not take, and no
	 * others. */
	if (fcntl(5, F_GETFD) != -1 || fcntl(4, F_GETFD) < 0)
		return 6;
	return 0;
}

Test(fdstore, inherited_descriptors_are_taken_once_by_name)
{
	int fds[3] = {make_file(), make_file(), make_file()};
	int status = -1;
	pid_t child = fork();

	cr_assert(ge(int, child, 0));
	if (child == 0)
		_exit(inherit(fds, 3, "listen:c1:catalog"));
	cr_assert(eq(int, waitpid(child, &status, 0), child));
	cr_expect(zero(int, status));
	for (int i = 0; i < 3; i++)
		close(fds[i]);
}

/* --- a store that is watched --------------------------------------------- */

static struct fdstore store;
static struct keeper keeper;
static uv_loop_t loop;
static uint32_t n_on_room;

static void on_room(void *data)
{
	(void)data;
	n_on_room++;
}

static void await_room(void)
{
	n_on_room = 0;
	while (n_on_room == 0)
		loop_step(&loop);
}

static void watch(void)
{
	keeper_open(&keeper);
	cr_assert(zero(int, uv_loop_init(&loop)));
	cr_assert(zero(int, fdstore_open(&store, NULL)));
	cr_assert(zero(int, fdstore_watch(&store, &loop, on_room, NULL, NULL)));
}

static void end(void)
{
	fdstore_stop(&store);
	uv_run(&loop, UV_RUN_DEFAULT);
	cr_expect(zero(int, uv_loop_close(&loop)));
	fdstore_close(&store);
	keeper_close(&keeper);
}

/* --- a keeper that does not read ----------------------------------------- */

/* Store until the socket is full. Returns how many were stored. */
static uint32_t fill(void)
{
	char name[16];
	int r = FDSTORE_OK;

	for (int i = 1; r == FDSTORE_OK; i++) {
		snprintf(name, sizeof(name), "c%d", i);
		r = fdstore_put(&store, 0, name, NULL);
	}
	cr_assert(eq(int, r, FDSTORE_WAIT));
	return store.n_stored;
}

static void receive_stored(uint32_t n)
{
	char text[256], expected[64];

	for (uint32_t i = 1; i <= n; i++) {
		close(keeper_receive(&keeper, text, sizeof(text)));
		snprintf(expected, sizeof(expected),
			 "FDSTORE=1\nFDPOLL=0\nFDNAME=c%u", i);
		cr_assert(eq(str, text, expected));
	}
}

static void expect_text(const char *expected)
{
	char text[256];

	cr_expect(eq(int, keeper_receive(&keeper, text, sizeof(text)), -1));
	cr_expect(eq(str, text, (char *)(uintptr_t)expected));
}

Test(fdstore, the_broker_does_not_wait_for_a_keeper_that_does_not_read,
     .timeout = 300)
{
	uint32_t n;

	watch();
	n = fill();
	fdstore_remove(&store, "c1");
	fdstore_notify(&store, "READY=1");
	fdstore_notify_now(&store, "WATCHDOG=1");
	cr_expect(fdstore_probe(&store));
	cr_expect(eq(int, fdstore_put(&store, 0, "x", NULL), FDSTORE_WAIT));
	uv_run(&loop, UV_RUN_NOWAIT);
	cr_expect(zero(u32, n_on_room));
	receive_stored(n);
	await_room();
	/* The queued messages arrive in order. Those that have become obsolete
	 * are not sent. */
	expect_text("FDSTOREREMOVE=1\nFDNAME=c1");
	expect_text("READY=1");
	cr_expect(eq(int, fdstore_put(&store, 0, "x", NULL), FDSTORE_OK));
	end();
}

Test(fdstore, a_keeper_that_dies_while_it_does_not_read_is_noticed,
     .timeout = 300)
{
	watch();
	fill();
	close(keeper.fd);
	keeper.fd = -1;
	await_room();
	cr_expect(eq(int, fdstore_put(&store, 0, "x", NULL), FDSTORE_OK));
	cr_expect(not(store.is_kept));
	end();
}

/* --- descriptors in messages that nobody receives ------------------------ */

#define LIMIT 250

/* Become another user, of whom there are no other processes. */
static void leave_root(void)
{
	uid_t uid = 0x40000000u + (uid_t)getpid();

	if (geteuid() == 0)
		cr_assert(zero(int, setresuid(uid, uid, 0)));
}

/* Send more descriptors than this process may have open. Returns the socket
 * whose queue holds them. */
static int send_too_many(void)
{
	const struct rlimit limit = {LIMIT, LIMIT};
	union {
		struct cmsghdr header;
		char bytes[CMSG_SPACE((LIMIT + 1) * sizeof(int))];
	} control = {.header = {.cmsg_len = CMSG_LEN((LIMIT + 1) * sizeof(int)),
				.cmsg_level = SOL_SOCKET,
				.cmsg_type = SCM_RIGHTS}};
	struct iovec part = {"x", 1};
	struct msghdr message = {.msg_iov = &part,
				 .msg_iovlen = 1,
				 .msg_control = &control,
				 .msg_controllen = sizeof(control)};
	int fds[2];

	cr_assert(zero(int, setrlimit(RLIMIT_NOFILE, &limit)));
	cr_assert(zero(int, socketpair(AF_UNIX, SOCK_DGRAM, 0, fds)));
	cr_assert(eq(long, sendmsg(fds[0], &message, 0), 1));
	close(fds[0]);
	return fds[1];
}

Test(fdstore, the_broker_does_not_wait_for_receivers_of_other_descriptors,
     .timeout = 300)
{
	bool is_root = geteuid() == 0;
	int fd;

	leave_root();
	watch();
	fd = send_too_many();
	cr_assert(eq(int, fdstore_put(&store, 0, "c1", NULL), FDSTORE_WAIT));
	/* A message without a descriptor is sent. */
	fdstore_notify(&store, "READY=1");
	expect_text("READY=1");
	/* No event says that the descriptors were received. */
	await_room();
	cr_expect(eq(int, fdstore_put(&store, 0, "c1", NULL), FDSTORE_WAIT));
	close(fd);
	await_room();
	cr_expect(eq(int, fdstore_put(&store, 0, "c1", NULL), FDSTORE_OK));
	receive_stored(1);
	end();
	/* LeakSanitizer, which looks at the end, needs root's rights. */
	if (is_root)
		cr_assert(zero(int, seteuid(0)));
}

Test(fdstore, descriptors_that_nobody_receives_are_a_shortage, .timeout = 300)
{
	struct error err = ERROR_NULL;
	int r;

	hold_too_many("fdstore.put:*:ETOOMANYREFS");
	watch();
	while ((r = fdstore_put(&store, 0, "c1", &err)) == FDSTORE_WAIT)
		await_room();
	cr_expect(eq(int, r, -ENFILE));
	cr_expect(strstr(err.msg, "too many descriptors; try again") != NULL);
	cr_expect(zero(u32, store.n_stored));
	unsetenv("FSDP_FAIL_AT");
	cr_expect(eq(int, fdstore_put(&store, 0, "c1", NULL), FDSTORE_OK));
	end();
}
