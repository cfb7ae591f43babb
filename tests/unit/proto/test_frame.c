/*
 * Tests frames over real sockets: what arrives, what is refused, and that no
 * descriptor of a refused frame stays open.
 */
#include "proto/error.h"
#include "proto/frame.h"
#include "tests/lib/check.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

static int count_open_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int n = 0;

	cr_assert(ne(ptr, dir, NULL));
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

/* Both ends of a connection. */
static int ours, theirs;
static uint8_t buffer[FRAME_MAX_SIZE];

static void connect_both(void)
{
	int fds[2];

	cr_assert(zero(int, socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC,
				       0, fds)));
	ours = fds[0];
	theirs = fds[1];
}

static void disconnect_both(void)
{
	close(ours);
	close(theirs);
}

TestSuite(frame, .init = connect_both, .fini = disconnect_both);

static int receive(struct frame *ret)
{
	return frame_recv(ours, buffer, ret, NULL, NULL);
}

/* Send the frame, and receive it. */
static void pass(const struct frame *frame, struct frame *ret,
		 struct frame_sender *sender)
{
	struct error err = ERROR_NULL;

	cr_assert(eq(int, frame_send(theirs, frame, &err), FRAME_OK), "%s",
		  err.msg);
	cr_assert(
		eq(int, frame_recv(ours, buffer, ret, sender, &err), FRAME_OK),
		"%s", err.msg);
}

static void pass_credentials(void)
{
	int on = 1;

	cr_assert(zero(int, setsockopt(ours, SOL_SOCKET, SO_PASSCRED, &on,
				       sizeof(on))));
}

/* Send bytes and `n_fds` duplicates of the socket itself, as one message. */
static void send_raw(const void *data, size_t size, size_t n_fds)
{
	struct iovec iov = {(void *)data, size};
	char control[CMSG_SPACE(253 * sizeof(int))] = {0};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	struct cmsghdr *cmsg;

	if (n_fds > 0) {
		msg.msg_control = control;
		msg.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
		cmsg = CMSG_FIRSTHDR(&msg);
		cmsg->cmsg_level = SOL_SOCKET;
		cmsg->cmsg_type = SCM_RIGHTS;
		cmsg->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
		for (size_t i = 0; i < n_fds; i++)
			memcpy(CMSG_DATA(cmsg) + i * sizeof(int), &theirs,
			       sizeof(int));
	}
	cr_assert(eq(long, sendmsg(theirs, &msg, 0), (long)size));
}

/* Make a valid frame, of which tests then change bytes. */
static void make_raw(uint8_t *raw, uint16_t n_fds, uint32_t body_size)
{
	uint32_t magic = FRAME_MAGIC;

	memset(raw, 0, FRAME_HEADER_SIZE + body_size);
	memcpy(raw, &magic, sizeof(magic));
	raw[4] = 4;
	memcpy(raw + 6, &n_fds, sizeof(n_fds));
	memcpy(raw + 28, &body_size, sizeof(body_size));
}

/* Send, receive, and expect a refusal that leaves no descriptor open. */
static void expect_refusal(const void *data, size_t size, size_t n_fds)
{
	struct error err = ERROR_NULL;
	struct frame frame = {.number = 77};
	int n = count_open_fds();

	send_raw(data, size, n_fds);
	cr_expect(
		eq(int, frame_recv(ours, buffer, &frame, NULL, &err), -EPROTO));
	cr_expect(ne(str, err.msg, ""));
	cr_expect(eq(u64, frame.number, 77));
	cr_expect(eq(int, count_open_fds(), n));
}

Test(frame, arrives_as_it_was_sent)
{
	struct frame got, sent = {.kind = 7,
				  .n_fds = 2,
				  .number = UINT64_MAX - 1,
				  .answered = 5,
				  .code = -EDQUOT,
				  .epoch = 1ull << 40,
				  .body = (const uint8_t *)"hello",
				  .body_size = 5};
	int n;

	sent.fds[0] = ours;
	sent.fds[1] = theirs;
	n = count_open_fds();
	pass(&sent, &got, NULL);
	cr_assert(eq(u16, got.kind, 7));
	cr_assert(eq(u64, got.number, UINT64_MAX - 1));
	cr_assert(eq(u64, got.answered, 5));
	cr_assert(eq(int, got.code, -EDQUOT));
	cr_assert(eq(u64, got.epoch, 1ull << 40));
	cr_assert(eq(u32, got.body_size, 5));
	cr_assert(zero(int, memcmp(got.body, "hello", 5)));
	cr_assert(eq(u16, got.n_fds, 2));
	cr_assert(eq(int, count_open_fds(), n + 2));
	cr_assert(eq(int, fcntl(got.fds[1], F_GETFD), FD_CLOEXEC));
	cr_assert(eq(int, got.fds[2], -1));
	frame_close_fds(&got);
	frame_close_fds(&got);
	cr_assert(eq(int, count_open_fds(), n));
}

Test(frame, a_one_way_request_is_marked_in_its_header)
{
	struct frame got, sent = {.kind = 7, .number = 1, .is_one_way = true};

	for (int i = 0; i < 2; i++) {
		pass(&sent, &got, NULL);
		cr_assert(eq(int, got.is_one_way, sent.is_one_way));
		sent.is_one_way = false;
	}
}

Test(frame, of_the_largest_size_with_all_fds_arrives)
{
	static uint8_t body[FRAME_MAX_BODY + 1];
	struct frame got, sent = {.kind = 1,
				  .n_fds = FRAME_MAX_FDS,
				  .body = body,
				  .body_size = FRAME_MAX_BODY};

	pass_credentials();
	for (int i = 0; i < FRAME_MAX_FDS; i++)
		sent.fds[i] = ours;
	pass(&sent, &got, NULL);
	cr_assert(eq(u32, got.body_size, FRAME_MAX_BODY));
	frame_close_fds(&got);
	sent.body_size++;
	cr_assert(eq(int, frame_send(theirs, &sent, NULL), -EMSGSIZE));
}

Test(frame, has_its_sender_if_the_socket_passes_credentials)
{
	struct frame got, sent = {.kind = 1};
	struct frame_sender sender = {1, 1, 1};

	pass(&sent, &got, &sender);
	cr_assert(zero(int, sender.pid));
	pass_credentials();
	pass(&sent, &got, &sender);
	cr_assert(eq(int, sender.pid, getpid()));
	cr_assert(eq(u32, sender.uid, getuid()));
	cr_assert(eq(u32, sender.gid, getgid()));
}

Test(frame, an_empty_or_full_socket_returns_frame_again)
{
	struct frame frame = {.kind = 1};
	int r;

	cr_assert(eq(int, receive(&frame), FRAME_AGAIN));
	do {
		r = frame_send(theirs, &frame, NULL);
	} while (r == FRAME_OK);
	cr_assert(eq(int, r, FRAME_AGAIN));
}

Test(frame, the_end_of_the_peer_is_reported_as_end_of_file)
{
	struct frame frame = {.kind = 1};

	/* The peer closes with unread data, so that our first error is
	 * ECONNRESET. */
	cr_assert(eq(int, frame_send(ours, &frame, NULL), FRAME_OK));
	close(theirs);
	cr_assert(eq(int, receive(&frame), FRAME_EOF));
	cr_assert(eq(int, receive(&frame), FRAME_EOF));
	cr_assert(eq(int, frame_send(ours, &frame, NULL), FRAME_EOF));
}

Test(frame, a_queued_frame_is_read_after_the_peer_has_closed)
{
	struct frame frame = {.kind = 9};

	cr_assert(eq(int, frame_send(theirs, &frame, NULL), FRAME_OK));
	close(theirs);
	frame.kind = 0;
	cr_assert(eq(int, receive(&frame), FRAME_OK));
	cr_assert(eq(u16, frame.kind, 9));
}

Test(frame, a_bad_descriptor_is_an_error_with_a_message)
{
	struct frame frame = {.kind = 1};
	struct error err = ERROR_NULL;

	cr_assert(eq(int, frame_send(-1, &frame, &err), -EBADF));
	cr_assert(ne(str, err.msg, ""));
	cr_assert(eq(int, frame_recv(-1, buffer, &frame, NULL, &err), -EBADF));
}

Test(frame, malformed_headers_are_refused)
{
	uint8_t raw[FRAME_HEADER_SIZE + 8];

	make_raw(raw, 1, 8);
	expect_refusal(raw, FRAME_HEADER_SIZE - 1, 1); /* half a header */
	expect_refusal(raw, 1, 1);
	expect_refusal(raw, sizeof(raw) - 1, 1); /* too little body */
	make_raw(raw, 0, 7);
	expect_refusal(raw, sizeof(raw), 0); /* too much body */
	make_raw(raw, 0, 8);
	raw[0] ^= 1;
	expect_refusal(raw, sizeof(raw), 0); /* wrong magic */
	make_raw(raw, 0, 8);
	raw[24] = 1; /* a code above 0 */
	expect_refusal(raw, sizeof(raw), 0);
	make_raw(raw, 0, 8);
	raw[27] = 0x80; /* the smallest possible code */
	expect_refusal(raw, sizeof(raw), 0);
}

Test(frame, a_message_larger_than_a_frame_is_refused)
{
	static uint8_t raw[FRAME_MAX_SIZE + 1];

	make_raw(raw, 2, FRAME_MAX_BODY + 1);
	expect_refusal(raw, sizeof(raw), 2);
}

Test(frame, fd_counts_that_differ_from_the_header_are_refused)
{
	uint8_t raw[FRAME_HEADER_SIZE];

	make_raw(raw, 2, 0);
	expect_refusal(raw, sizeof(raw), 0);
	expect_refusal(raw, sizeof(raw), 1);
	expect_refusal(raw, sizeof(raw), 3);
}

/* 33 to 40 fit the control buffer if no credentials come with them. */
Test(frame, more_fds_than_allowed_are_refused_and_closed)
{
	uint8_t raw[FRAME_HEADER_SIZE];

	for (uint16_t n = FRAME_MAX_FDS + 1; n < FRAME_MAX_FDS + 12; n++) {
		make_raw(raw, n, 0);
		expect_refusal(raw, sizeof(raw), n);
	}
	make_raw(raw, 253, 0);
	expect_refusal(raw, sizeof(raw), 253);
}

Test(frame, fds_of_an_empty_message_are_closed)
{
	struct frame frame;
	int n = count_open_fds();

	send_raw("", 0, 3);
	cr_assert(eq(int, receive(&frame), FRAME_EOF));
	cr_assert(eq(int, count_open_fds(), n));
}

/* The kernel then delivers fewer, sets MSG_CTRUNC and reports no error. */
Test(frame, fds_cut_off_by_the_limit_of_open_files_are_refused_and_closed)
{
	struct rlimit limit, low;
	struct frame got, sent = {.kind = 1, .n_fds = 3};
	struct error err = ERROR_NULL;
	int n, r;

	for (int i = 0; i < 3; i++)
		sent.fds[i] = ours;
	cr_assert(eq(int, frame_send(theirs, &sent, NULL), FRAME_OK));
	n = count_open_fds();
	cr_assert(zero(int, getrlimit(RLIMIT_NOFILE, &limit)));
	low = limit;
	/* At most two more descriptors can be opened, but the frame has
	 * three. */
	low.rlim_cur = (rlim_t)dup(ours) + 2;
	close((int)low.rlim_cur - 2);
	cr_assert(zero(int, setrlimit(RLIMIT_NOFILE, &low)));
	r = frame_recv(ours, buffer, &got, NULL, &err);
	cr_assert(zero(int, setrlimit(RLIMIT_NOFILE, &limit)));
	cr_assert(eq(int, r, -EMFILE));
	cr_assert(eq(int, count_open_fds(), n));
	/* The socket itself is still usable. */
	sent.n_fds = 0;
	pass(&sent, &got, NULL);
}
