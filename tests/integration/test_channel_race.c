/*
 * Tests that the wait for an item ends in time, also if another consumer takes
 * each item first.
 */
#include "client/interrupt.h"
#include "tests/lib/chaos.h"
#include "tests/lib/check.h"
#include "tests/lib/client.h"
#include "tests/lib/item.h"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

CHECKED_SUITE(channel_race, client_setup, client_teardown, .timeout = 300);

/* The process stops before it looks for an item, when it has found one, and
 * before it looks again. */
static const char STOPS[] = "bell.spins 1\nslots.found 1\nbell.spins 1\n";

/* A call that is always too late, and its result. */
struct late {
	int32_t timeout_ms;
	int r;
	char plan[64];
};

static struct fsdp_channel *open_as(struct fsdp_client *of,
				    enum fsdp_channel_role role)
{
	const struct fsdp_channel_options options = {
		.capacity = 4096, .n_slots = 2, .timeout_ms = 10000};
	struct fsdp_channel *channel;

	must(fsdp_channel_open(of, "data/batches", &options, role, &channel) ==
	     0);
	return channel;
}

static int end_always(void *unused)
{
	(void)unused;
	return 1;
}

static void receive_late(void *data)
{
	const struct late *late = data;
	struct fsdp_connect_options options = {
		.path = daemon_socket(&daemon_),
		.interrupted = late->r == -EINTR ? end_always : NULL};
	struct fsdp_channel *to;
	struct fsdp_client *mine;
	struct fsdp_item *item;

	must(fsdp_connect(&options, &mine) == 0);
	to = open_as(mine, FSDP_CONSUMER);
	must(setenv("FSDP_STOP_PLAN", late->plan, 1) == 0);
	must(fsdp_item_receive(to, late->timeout_ms, &item) == late->r);
}

/* Wait until the process stops or ends. Returns whether it stopped. */
static bool has_stopped(pid_t pid)
{
	int status;

	must(waitpid(pid, &status, WUNTRACED) == pid);
	must(WIFSTOPPED(status) || status == 0);
	return WIFSTOPPED(status);
}

static void go_on(pid_t pid)
{
	must(kill(pid, SIGCONT) == 0);
}

/* Another consumer is faster after `ms`, and no item comes later. */
static void be_faster_after(unsigned int ms, struct late *late)
{
	struct fsdp_channel *from = open_as(client, FSDP_PRODUCER);
	struct fsdp_channel *to = open_as(client, FSDP_CONSUMER);
	pid_t pid;

	if (!chaos_has_points())
		cr_skip_test("built without points");
	(void)snprintf(late->plan, sizeof(late->plan), "%s/plan", daemon_.dir);
	plan_write(late->plan, STOPS);
	pid = child_start(receive_late, late);
	cr_assert(has_stopped(pid));
	nap_ms(ms);
	item_send_number(from, 1);
	go_on(pid);
	cr_assert(has_stopped(pid), "it takes no item at the end");
	must(fsdp_item_release(item_receive(to, 1)) == 0);
	go_on(pid);
	cr_expect(not(has_stopped(pid)), "it waits again");
}

Test(channel_race, a_consumer_that_is_always_too_late_keeps_its_time_out)
{
	struct late late = {.timeout_ms = 20, .r = -ETIMEDOUT};

	be_faster_after(20, &late);
}

Test(channel_race, a_consumer_that_is_always_too_late_is_interrupted)
{
	struct late late = {.timeout_ms = -1, .r = -EINTR};

	be_faster_after(INTERRUPT_SLICE_MS, &late);
}
