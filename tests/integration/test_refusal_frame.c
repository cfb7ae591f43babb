/*
 * Tests frames, descriptors and reconnects that break the protocol. They end
 * the connection, and affect nothing else. Also tests the library's messages if
 * no broker answers.
 */
#include "client/fsdp.h"
#include "proto/error.h"
#include "shm/memfd.h"
#include "tests/lib/actor.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"
#include "tests/lib/impatient.h"
#include "tests/lib/linger.h"
#include "tests/lib/wire.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static struct daemon daemon_;
static struct wire *me, *other;

static void setup(void)
{
	daemon_start(&daemon_);
	me = wire_open(daemon_socket(&daemon_));
	other = wire_open(daemon_socket(&daemon_));
}

static void teardown(void)
{
	wire_close(me);
	wire_close(other);
	daemon_stop(&daemon_);
}

TestSuite(refusal_frame, .init = setup, .fini = teardown, .timeout = 300);

static void check_unchanged(const struct wire_counts *before, const char *what)
{
	struct wire_counts after;

	wire_count(other, &after);
	cr_assert(eq(ptr, (void *)wire_counts_differ(before, &after), NULL),
		  "%s changed %s", what, wire_counts_differ(before, &after));
}

/* --- frames -------------------------------------------------------------- */

/* Returns the number of the broker's descriptors after it has closed all that
 * clients sent. */
static int count_fds(void)
{
	char path[64];
	DIR *directory;
	int n = 0;

	wire_wait_status(me, "closing", 0);
	snprintf(path, sizeof(path), "/proc/%d/fd",
		 (int)daemon_broker_pid(&daemon_));
	directory = opendir(path);
	cr_assert(ne(ptr, directory, NULL));
	while (readdir(directory))
		n++;
	closedir(directory);
	return n;
}

/* Wait until the broker has so many descriptors. It keeps that of a connection
 * for a moment after the client has read the last reply. */
static void wait_for_fds(int n)
{
	while (count_fds() != n)
		poll(NULL, 0, 1);
}

/* Write a valid header. The test changes it afterwards. */
static size_t make_frame(uint8_t *ret, uint16_t kind, uint16_t n_fds,
			 int32_t code, uint32_t size)
{
	const uint32_t magic = FRAME_MAGIC;
	const uint64_t number = 1000;

	memset(ret, 0, FRAME_HEADER_SIZE);
	memcpy(ret, &magic, 4);
	memcpy(ret + 4, &kind, 2);
	memcpy(ret + 6, &n_fds, 2);
	memcpy(ret + 8, &number, 8);
	memcpy(ret + 24, &code, 4);
	memcpy(ret + 28, &size, 4);
	return FRAME_HEADER_SIZE;
}

/* Send any bytes with any number of descriptors. */
static void send_raw(const struct wire *wire, const void *bytes, size_t size,
		     int n_fds)
{
	union {
		struct cmsghdr header;
		char bytes[CMSG_SPACE(100 * sizeof(int))];
	} control = {0};
	struct iovec iov = {(void *)(uintptr_t)bytes, size};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	size_t fds_size = (size_t)n_fds * sizeof(int);

	if (n_fds > 0) {
		msg.msg_control = &control;
		msg.msg_controllen = CMSG_SPACE(fds_size);
		control.header.cmsg_level = SOL_SOCKET;
		control.header.cmsg_type = SCM_RIGHTS;
		control.header.cmsg_len = CMSG_LEN(fds_size);
		/* The array is all zeros, so descriptor 0 is sent several
		 * times. */
	}
	cr_assert(eq(sz, (size_t)sendmsg(wire->fd, &msg, 0), size));
}

/* Check that the broker sends a sentence and closes the connection, and that
 * nothing else changes. */
static void check_dropped(struct wire *wire, const char *what)
{
	int n = 0;

	while (wire_receive(wire) == FRAME_OK) {
		cr_assert(eq(int, wire->frame.code, -EPROTO), "%s", what);
		cr_assert(ne(int, (int)strlen(wire_sentence(wire)), 0));
		n++;
	}
	cr_assert(le(int, n, 1), "%s", what);
	wire_close(wire);
}

static const struct {
	const char *what;
	size_t size; /* size of the frame */
	uint16_t kind, n_fds_said;
	int n_fds;
	int32_t code;
	uint32_t body_said;
} bad_frames[] = {
	{"less than a header", 39, MESSAGE_PING, 0, 0, 0, 0},
	{"one byte", 1, MESSAGE_PING, 0, 0, 0, 0},
	{"less than announced", 40, MESSAGE_PING, 0, 0, 0, 1},
	{"more than announced", 41, MESSAGE_PING, 0, 0, 0, 0},
	{"a body of 4 GiB", 40, MESSAGE_PING, 0, 0, 0, UINT32_MAX},
	{"more than a frame", FRAME_MAX_SIZE + 1, MESSAGE_PING, 0, 0, 0,
	 FRAME_MAX_BODY + 1},
	{"a positive code", 40, MESSAGE_PING, 0, 0, 1, 0},
	{"no errno", 40, MESSAGE_PING, 0, 0, INT32_MIN, 0},
	{"a descriptor that is not there", 40, MESSAGE_PING, 1, 0, 0, 0},
	{"a descriptor that was not announced", 40, MESSAGE_PING, 0, 1, 0, 0},
	{"one descriptor of two", 40, MESSAGE_PING, 2, 1, 0, 0},
	{"33 descriptors", 40, MESSAGE_PING, 33, 33, 0, 0},
	{"100 descriptors", 40, MESSAGE_PING, 100, 100, 0, 0},
	{"descriptors with a ping", 40, MESSAGE_PING, 2, 2, 0, 0},
	{"a second hello", 40, MESSAGE_HELLO, 0, 0, 0, 0},
	{"an answer to no challenge", 40, MESSAGE_CHALLENGE, 0, 0, 0, 0},
};

Test(refusal_frame, of_frames_closes_every_descriptor)
{
	static uint8_t bytes[FRAME_MAX_SIZE + 1];
	struct wire_counts before;
	struct wire *wire;
	int n_fds;

	for (size_t i = 0; i < sizeof(bad_frames) / sizeof(*bad_frames); i++) {
		(void)wire_status(me, "slots");
		wire = wire_connect(daemon_socket(&daemon_));
		cr_assert(zero(int, wire_hello(wire, 0)));
		wire_count(other, &before);
		n_fds = count_fds();
		(void)make_frame(bytes, bad_frames[i].kind,
				 bad_frames[i].n_fds_said, bad_frames[i].code,
				 bad_frames[i].body_said);
		send_raw(wire, bytes, bad_frames[i].size, bad_frames[i].n_fds);
		check_dropped(wire, bad_frames[i].what);
		wire_wait_status(me, "peers", 2);
		/* The connection's descriptor is closed as well. */
		wait_for_fds(n_fds - 1);
		/* The connection's share of the limit is freed. */
		*wire_counts_at(&before, "own_queue_bytes") -= 16384;
		check_unchanged(&before, bad_frames[i].what);
	}
}

Test(refusal_frame, of_frames_before_the_hello_closes_every_descriptor)
{
	uint8_t bytes[FRAME_HEADER_SIZE];
	int n_fds = count_fds();
	struct wire *wire;

	for (uint16_t kind = 0; kind <= MESSAGE_MAX + 1; kind++) {
		wire = wire_connect(daemon_socket(&daemon_));
		(void)make_frame(bytes, kind, 3, 0, 0);
		send_raw(wire, bytes, sizeof(bytes), 3);
		check_dropped(wire, message_kind_name(kind));
		wire_wait_status(me, "peers", 2);
		cr_assert(eq(int, count_fds(), n_fds), "%s",
			  message_kind_name(kind));
	}
}

Test(refusal_frame, of_numbers)
{
	static const uint64_t numbers[][2] = {
		{0, 0}, {5, 6}, {5, UINT64_MAX}, {0, 1}};
	struct frame frame = {.kind = MESSAGE_PING,
			      .body = (const uint8_t *)""};
	struct wire *wire;

	for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers); i++) {
		wire = wire_open(daemon_socket(&daemon_));
		frame.number = numbers[i][0];
		frame.answered = numbers[i][1];
		cr_assert(
			eq(int, frame_send(wire->fd, &frame, NULL), FRAME_OK));
		check_dropped(wire, "a number");
	}
}

/* A client may send any cursor. */
Test(refusal_frame, is_not_for_invalid_cursors)
{
	struct request list = {
		.kind = MESSAGE_LIST,
		.list = {.prefix = "",
			 .filter = LIST_ALL,
			 .cursor = UINT64_MAX},
	};
	struct request clients = {
		.kind = MESSAGE_CLIENTS,
		.clients = {.cursor = UINT64_MAX},
	};
	struct request prefixes = {
		.kind = MESSAGE_PREFIXES,
		.prefixes = {.cursor = UINT64_MAX},
	};
	struct request who = {
		.kind = MESSAGE_WHO,
		.who = {.name = "test/a", .cursor = UINT64_MAX},
	};

	cr_assert(zero(int, wire_put(me, "test/a", 64, NULL, NULL)));
	cr_assert(zero(int, wire_call(me, &list)));
	cr_assert(zero(u32, me->reply.list.n_items));
	cr_assert(zero(int, wire_call(me, &clients)));
	cr_assert(zero(u32, me->reply.clients.n_items));
	cr_assert(zero(int, wire_call(me, &prefixes)));
	cr_assert(zero(u32, me->reply.prefixes.n_items));
	cr_assert(zero(int, wire_call(me, &who)));
	cr_assert(zero(u32, me->reply.who.n_holders));
}

/* A number whose request waits cannot be used twice. */
Test(refusal_frame, of_the_number_of_a_pending_request)
{
	const char *name = "test/never";
	struct request get = {
		.kind = MESSAGE_GET,
		.get = {.timeout_ms = -1, .n_names = 1, .names = &name},
	};
	struct wire *wire = wire_open(daemon_socket(&daemon_));

	wire_send(wire, &get);
	wire_wait_status(me, "waiters", 1);
	wire->number--;
	wire_send(wire, &get);
	check_dropped(wire, "a number under way");
	wire_wait_status(me, "waiters", 0);
}

/* --- dangerous descriptors ----------------------------------------------- */

/* Send the broker the last reference to a lingering socket in a frame that
 * follows `n` bad frames. With `is_nested`, the socket is in the queue of
 * another socket. */
static void check_lingering(int n, bool is_nested)
{
	pid_t broker = daemon_broker_pid(&daemon_);
	uint8_t bytes[FRAME_HEADER_SIZE];
	struct wire *wire = wire_open(daemon_socket(&daemon_));
	int end, fd = make_lingering(&end);

	if (is_nested)
		fd = put_in_socket(fd);
	(void)make_frame(bytes, MESSAGE_PING, 0, 1, 0);
	/* The broker finds all frames at once. */
	kill(broker, SIGSTOP);
	for (int i = 0; i < n; i++)
		send_raw(wire, bytes, sizeof(bytes), 0);
	wire_send_body(wire, MESSAGE_PING, 1000, "", 0, &fd, 1);
	close(fd);
	kill(broker, SIGCONT);
	check_dropped(wire, "a socket");
	wire_wait_status(me, "peers", 2);
	while (wire_status(me, "closing") == 0)
		poll(NULL, 0, 1);
	close(end);
	wire_wait_status(me, "closing", 0);
}

Test(refusal_frame, of_a_socket_that_lingers_does_not_block_the_broker)
{
	check_lingering(0, false);
}

/* The broker drops the connection before it reads that frame. */
Test(refusal_frame,
     of_a_lingering_socket_in_an_unread_frame_does_not_block_the_broker)
{
	check_lingering(3, false);
}

Test(refusal_frame,
     of_a_lingering_socket_within_another_does_not_block_the_broker)
{
	check_lingering(0, true);
}

/* --- reconnects ---------------------------------------------------------- */

/* Reconnect to the session with these files. Returns the code. */
static int reconnect(int refs_fd, int doorbell_fd, char *ret_sentence)
{
	struct wire *wire = wire_connect(daemon_socket(&daemon_));
	struct request hello = {
		.kind = MESSAGE_HELLO,
		.hello = {.major = PROTOCOL_MAJOR,
			  .is_reconnect = true,
			  .session = me->session},
	};
	const int fds[] = {refs_fd, doorbell_fd};
	uint8_t *body;
	size_t size;
	int r;

	memcpy(hello.hello.token, me->token, TOKEN_SIZE);
	cr_assert(zero(int, request_encode(&hello, &body, &size, NULL)));
	wire_send_body(wire, MESSAGE_HELLO, 1, body, size, fds, 2);
	cr_assert(eq(int, wire_receive(wire), FRAME_OK));
	r = wire->frame.code;
	snprintf(ret_sentence, ERROR_MSG_SIZE, "%s", wire_sentence(wire));
	free(body);
	wire_close(wire);
	return r;
}

static int make_file(uint64_t size, enum memfd_seals seals)
{
	struct error err = ERROR_NULL;
	int fd;

	cr_assert(
		zero(int, memfd_create_sealed("test", size, seals, &fd, &err)),
		"%s", err.msg);
	return fd;
}

static int make_unsealed(uint64_t size)
{
	int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	cr_assert(zero(int, ftruncate(fd, (off_t)size)));
	return fd;
}

Test(refusal_frame, of_files_that_are_not_the_session_s)
{
	char sentence[ERROR_MSG_SIZE];
	struct stat status;
	uint64_t size;
	int pipe_fds[2];

	cr_assert(zero(int, fstat(me->refs_fd, &status)));
	cr_assert(zero(int, pipe(pipe_fds)));
	size = (uint64_t)status.st_size;
	const struct {
		const char *what;
		int fd, code;
		const char *says;
	} all[] = {
		{"another's", fcntl(other->refs_fd, F_DUPFD_CLOEXEC, 3), -EPERM,
		 "not the ref-counter file of session"},
		{"unsealed", make_unsealed(size), -EPERM, "not sealed"},
		{"short", make_file(4096, MEMFD_SEAL_CLOSED), -EINVAL,
		 "4096 bytes instead of"},
		{"long", make_file(size + 4096, MEMFD_SEAL_CLOSED), -EINVAL,
		 "bytes instead of"},
		{"empty", make_file(size, MEMFD_SEAL_CLOSED), -EPROTO,
		 "not a ref-counter file"},
		{"open to seals", make_file(size, MEMFD_SEAL_SIZE), -EPERM,
		 "can still be sealed"},
		{"a pipe", pipe_fds[0], -EINVAL, "not a memory file"},
		{"a directory", open("/", O_RDONLY | O_CLOEXEC), -EINVAL,
		 "not a memory file"},
		{"an eventfd", eventfd(0, EFD_CLOEXEC), -EINVAL,
		 "not a memory file"},
		{"the state table", fcntl(me->table_fd, F_DUPFD_CLOEXEC, 3),
		 -EINVAL, "bytes instead of"},
	};
	int n_fds = count_fds();

	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) {
		cr_assert(eq(int,
			     reconnect(all[i].fd, me->doorbell_fd, sentence),
			     all[i].code),
			  "%s: %s", all[i].what, sentence);
		cr_assert(ne(ptr, strstr(sentence, all[i].says), NULL),
			  "%s: %s", all[i].what, sentence);
		close(all[i].fd);
		/* Our connection is not affected. */
		wire_wait_status(me, "peers", 2);
		cr_assert(eq(int, count_fds(), n_fds), "%s", all[i].what);
	}
	close(pipe_fds[1]);
}

/* --- the library --------------------------------------------------------- */

TestSuite(refusal_client, .timeout = 300);

static int try_connect(const char *path, struct fsdp_client **ret)
{
	const struct fsdp_connect_options options = {.path = path,
						     .reconnect_ms = 50};

	return fsdp_connect(&options, ret);
}

static void client_says(const char *what)
{
	cr_assert(ne(ptr, strstr(fsdp_error(), what), NULL),
		  "\"%s\" does not say \"%s\"", fsdp_error(), what);
}

Test(refusal_client, of_a_connection_without_a_broker)
{
	struct fsdp_client *client = NULL;
	char path[200];

	cr_assert(eq(int, try_connect("/nonexistent/fsdpd.sock", &client),
		     -ENOENT));
	client_says("/nonexistent/fsdpd.sock");
	client_says("; start it, or name its socket");
	cr_assert(eq(int, try_connect("", &client), -EINVAL));
	client_says("is empty; name one");
	cr_assert(eq(int, try_connect("/dev/null", &client), -ECONNREFUSED));
	client_says("/dev/null");
	memset(path, 'x', sizeof(path) - 1);
	path[sizeof(path) - 1] = '\0';
	cr_assert(eq(int, try_connect(path, &client), -ENAMETOOLONG));
	client_says("107 bytes");
	cr_assert(eq(ptr, client, NULL));
}

/* A process listens, and never sends anything. */
Test(refusal_client, of_a_connection_to_a_broker_that_hangs)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	char directory[] = "/tmp/fsdpd-test-XXXXXX";
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	struct fsdp_client *client = NULL;

	cr_assert(ne(ptr, mkdtemp(directory), NULL));
	snprintf(address.sun_path, sizeof(address.sun_path), "%s/sock",
		 directory);
	cr_assert(zero(int,
		       bind(fd, (struct sockaddr *)&address, sizeof(address))));
	cr_assert(zero(int, listen(fd, 1)));
	cr_assert(eq(int, try_connect(address.sun_path, &client), -ETIMEDOUT));
	client_says("does not answer");
	client_says("see its log");
	close(fd);
	unlink(address.sun_path);
	rmdir(directory);
}

static struct fsdp_client *patient;

static void *wait_in_vain(void *data)
{
	const char *name = "test/never";
	const struct fsdp_get_options options = {.timeout_ms = -1};
	struct fsdp_tensor *tensor;

	*(int *)data = fsdp_get(patient, &name, 1, &options, &tensor);
	return NULL;
}

Test(refusal_client, of_calls_after_the_broker_has_ended)
{
	struct wire *wire;
	pthread_t thread;
	int r = 1;

	daemon_start(&daemon_);
	wire = wire_open(daemon_socket(&daemon_));
	patient = connect_impatiently(daemon_socket(&daemon_), 50);
	pthread_create(&thread, NULL, wait_in_vain, &r);
	wire_wait_status(wire, "waiters", 1);
	daemon_kill_broker(&daemon_);
	pthread_join(thread, NULL);
	cr_assert(lt(int, r, 0));
	cr_assert(lt(int, fsdp_ping(patient), 0));
	client_says("50 ms");
	client_says(daemon_socket(&daemon_));
	fsdp_close(patient);
	wire_close(wire);
	daemon_stop(&daemon_);
}

static int connect_as_stranger(void)
{
	struct fsdp_client *client = NULL;
	int r = try_connect(daemon_socket(&daemon_), &client);

	return strstr(fsdp_error(), daemon_socket(&daemon_)) ? r : 1;
}

/* Other users cannot enter the directory of the socket. */
Test(refusal_client, of_a_connection_without_permission)
{
	const struct identity identity = {61001, 61001, 0};
	struct actor stranger = {0};

	if (!actor_may_be_others())
		cr_skip_test("only root can be another user");
	daemon_start(&daemon_);
	actor_start(&stranger, &identity);
	cr_assert(eq(int, actor_run(&stranger, connect_as_stranger), -EACCES));
	actor_kill(&stranger);
	daemon_stop(&daemon_);
}
