/*
 * Tests programs that close descriptors of the library, for example with
 * closefrom(). Each call reports it, and no call uses the files that the
 * program has opened since with the same numbers.
 */
#include "client/fsdp_comm.h"
#include "tests/lib/chaos.h"
#include "tests/lib/check.h"
#include "tests/lib/client.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define FIRST   3
#define N       40  /* more descriptors than the library has open */
#define N_NAMES 600 /* more names than one page of a list has */

CHECKED_SUITE(closed_descriptors, client_setup, client_teardown,
	      .timeout = 300);

static void close_all(void)
{
	must(close_range(FIRST, ~0U, 0) == 0);
}

/* --- a process of its own, which may lose its descriptors ----------------- */

static struct fsdp_client *mine;
static struct fsdp_tensor *old; /* a newer version replaced it */
static struct fsdp_channel *channel;
static struct fsdp_pending *pending; /* a get that waits for a name */

/* Use all kinds of descriptors that the library keeps. */
static void open_mine(void)
{
	const struct fsdp_channel_options options = {
		.capacity = 64, .n_slots = 2, .timeout_ms = 10000};
	const struct fsdp_get_options patient = {.timeout_ms = -1};
	const char *name = "t/none";

	mine = connect_to(&daemon_, 0);
	put(mine, "t/old", 1);
	must(get(mine, "t/old", 0, &old) == 0);
	put(mine, "t/old", 2);
	must(fsdp_fd(mine) >= 0);
	must(fsdp_channel_open(mine, "t/channel", &options, FSDP_CONSUMER,
			       &channel) == 0);
	must(fsdp_channel_fd(channel) >= 0);
	must(fsdp_get_begin(mine, &name, 1, &patient, &pending) == 0);
}

/* Make calls that write to descriptors, send them, and close them. */
static void use_mine(void)
{
	struct fsdp_tensor *tensor;

	must(fsdp_get_end(pending, &tensor) == -EBADF);
	must(fsdp_ping(mine) == -EBADF);
	must(strstr(fsdp_error(), "has closed descriptors"));
	must(fsdp_alloc(mine, &VECTOR, 1, NULL, 0, &tensor) == -EBADF);
	fsdp_free(old);
	must(fsdp_channel_close(channel) == -EBADF);
	must(fsdp_close(mine) == 0);
}

static void use_after_closing(void *unused)
{
	(void)unused;
	open_mine();
	close_all();
	use_mine();
}

Test(closed_descriptors, each_call_reports_the_closed_descriptors)
{
	cr_expect(child_run(use_after_closing, NULL));
}

static void call_as_a_rank(void *unused)
{
	struct fsdp_comm *comm;
	struct fsdp_work work;

	(void)unused;
	mine = connect_to(&daemon_, 0);
	must(fsdp_comm_join(mine, "team/job", 1, 0, NULL, &comm) == 0);
	close_all();
	for (int i = 0; i < 2; i++) {
		must(fsdp_commit(comm, 1, &work) == -EBADF);
		must(strstr(fsdp_error(), "has closed descriptors"));
	}
	must(fsdp_close(mine) == 0);
}

Test(closed_descriptors,
     a_rank_gets_another_error_than_that_the_broker_has_exited)
{
	cr_expect(child_run(call_as_a_rank, NULL));
}

/* --- other files under the numbers --------------------------------------- */

enum kind { SOCKETS, EVENTS, FILES };

static int others[N]; /* the other ends of the sockets */

static void open_foreign(enum kind kind)
{
	int pair[2];

	for (int i = 0; i < N; i++) {
		if (kind == EVENTS) {
			must(eventfd(0, EFD_NONBLOCK) == FIRST + i);
		} else if (kind == FILES) {
			must(open("/tmp", O_TMPFILE | O_RDWR, 0600) ==
			     FIRST + i);
		} else {
			must(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0);
			others[i] = fcntl(pair[1], F_DUPFD, FIRST + N);
			must(others[i] >= 0 && close(pair[1]) == 0);
			must(pair[0] == FIRST + i);
		}
	}
}

/* Nothing was written there, and nothing is closed. */
static void check_foreign(enum kind kind)
{
	for (int i = 0; i < N; i++) {
		struct pollfd polled = {.fd = kind == EVENTS ? FIRST + i
							     : others[i],
					.events = POLLIN};

		must(fcntl(FIRST + i, F_GETFD) >= 0);
		if (kind == FILES)
			must(lseek(FIRST + i, 0, SEEK_END) == 0);
		else
			must(poll(&polled, 1, 0) == 0);
	}
}

static void use_beside_others(void *data)
{
	enum kind kind = *(enum kind *)data;

	open_mine();
	close_all();
	open_foreign(kind);
	use_mine();
	check_foreign(kind);
}

Test(closed_descriptors, no_call_uses_a_file_of_the_program)
{
	for (enum kind kind = SOCKETS; kind <= FILES; kind++)
		cr_expect(child_run(use_beside_others, &kind));
}

/* The broker has the request for the second page. */
static int lose_between_pages(const struct fsdp_entry *entry, void *data)
{
	bool *is_lost = data;

	(void)entry;
	if (*is_lost)
		return 0;
	*is_lost = true;
	close_all();
	open_foreign(SOCKETS);
	for (int i = 0; i < N; i++)
		must(write(others[i], "message", 7) == 7);
	return 0;
}

static void list_pages(void *unused)
{
	bool is_lost = false;
	char byte;

	(void)unused;
	mine = connect_to(&daemon_, 0);
	must(fsdp_list(mine, NULL, lose_between_pages, &is_lost) == -EBADF);
	must(is_lost);
	for (int i = 0; i < N; i++)
		must(recv(FIRST + i, &byte, 1, MSG_DONTWAIT) == 1);
	must(fsdp_close(mine) == 0);
}

Test(closed_descriptors, a_list_does_not_receive_messages_of_the_program)
{
	char name[32];

	for (int i = 0; i < N_NAMES; i++) {
		(void)snprintf(name, sizeof(name), "t/%d", i);
		put(client, name, 0);
	}
	cr_expect(child_run(list_pages, NULL));
}

static void close_beside_others(void *data)
{
	enum kind kind = *(enum kind *)data;

	close_all();
	open_foreign(kind);
	must(fsdp_close(mine) == 0);
	check_foreign(kind);
}

static void fork_and_close(void *data)
{
	open_mine();
	must(child_run(close_beside_others, data));
	must(fsdp_ping(mine) == 0);
}

Test(closed_descriptors, a_forked_child_does_not_close_its_own_files)
{
	for (enum kind kind = SOCKETS; kind <= FILES; kind++)
		cr_expect(child_run(fork_and_close, &kind));
}

static void connect_again(void *unused)
{
	struct fsdp_client *again;

	(void)unused;
	open_mine();
	close_all();
	again = connect_to(&daemon_, 0);
	use_mine();
	must(fsdp_ping(again) == 0);
	must(fsdp_close(again) == 0);
}

Test(closed_descriptors, a_connection_made_afterwards_is_not_disturbed)
{
	cr_expect(child_run(connect_again, NULL));
}
