/*
 * Tests the interruption of waits for a channel, and of waits that are woken
 * all the time; and what becomes of the request. test_pending.c tests the
 * interruption of other waits.
 */
#include "tests/lib/chaos.h"
#include "tests/lib/check.h"
#include "tests/lib/client.h"
#include "tests/lib/item.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* The client that is interrupted; its hook gets the number of the call. */
static struct fsdp_client *mine;
static int (*hook)(unsigned int n);
static atomic_uint n_asked;

static int ask(void *data)
{
	(void)data;
	return hook(atomic_fetch_add(&n_asked, 1) + 1);
}

static int go_on(unsigned int n)
{
	(void)n;
	return 0;
}

static int end_always(unsigned int n)
{
	(void)n;
	return 1;
}

static void setup(void)
{
	struct fsdp_connect_options options = {.interrupted = ask};

	client_setup();
	options.path = daemon_socket(&daemon_);
	hook = go_on;
	must(fsdp_connect(&options, &mine) == 0);
}

static void teardown(void)
{
	hook = go_on;
	fsdp_close(mine);
	client_teardown();
}

CHECKED_SUITE(interrupt_busy, setup, teardown, .timeout = 300);
CHECKED_SUITE(interrupt_channel, setup, teardown, .timeout = 300);
CHECKED_SUITE(interrupt_undo, setup, teardown, .timeout = 300);

/* --- other threads of the connection -------------------------------------- */

static pthread_t reader;

static int end_reader(unsigned int n)
{
	(void)n;
	return pthread_equal(pthread_self(), reader);
}

/* This thread also reads the replies to the requests of other threads. */
static void *get_late(void *unused)
{
	struct fsdp_tensor *tensor;

	(void)unused;
	reader = pthread_self();
	hook = end_reader;
	return (void *)(intptr_t)get(mine, "test/late", -1, &tensor);
}

#define MANY_PINGS 200000

Test(interrupt_busy, a_thread_that_never_sleeps_long_is_interrupted)
{
	void *r = NULL;
	pthread_t thread;
	int n = 0;

	must(pthread_create(&thread, NULL, get_late, NULL) == 0);
	wait_until_parked(1);
	while (n < MANY_PINGS && pthread_tryjoin_np(thread, &r) == EBUSY) {
		must(fsdp_ping(mine) == 0);
		n++;
	}
	cr_expect(lt(int, n, MANY_PINGS), "the pings keep it awake");
	if (n == MANY_PINGS)
		must(pthread_join(thread, &r) == 0);
	cr_expect(eq(int, (int)(intptr_t)r, -EINTR));
}

/* --- what is refused ------------------------------------------------------ */

/* With a hook, the call waits in slices. */
Test(interrupt_channel, a_refusal_that_no_time_can_change_names_no_time)
{
	const struct fsdp_channel_options huge = {.capacity = UINT64_C(1) << 50,
						  .n_slots = 2,
						  .timeout_ms = 60000};
	struct fsdp_channel *channel;

	cr_expect(eq(int,
		     fsdp_channel_open(mine, "data/huge", &huge, FSDP_PRODUCER,
				       &channel),
		     -EDQUOT));
	cr_expect(eq(ptr, strstr(fsdp_error(), "after "), NULL), "%s",
		  fsdp_error());
}

/* --- a function that reports each signal once ------------------------------
 */

static pthread_t main_thread;
static atomic_bool is_over;

static int open_none(void)
{
	const struct fsdp_channel_options options = {.timeout_ms = 2000};
	struct fsdp_channel *channel;

	return fsdp_channel_open(mine, "data/none", &options, FSDP_CONSUMER,
				 &channel);
}

static int end_first(unsigned int n)
{
	static atomic_uint n_here;

	(void)n;
	return pthread_equal(pthread_self(), main_thread) &&
	       atomic_fetch_add(&n_here, 1) == 0;
}

/* The broker starts with the request of the main thread a little later, so that
 * the function is due when the reply comes; and the reply to the ping wakes the
 * main thread, which then sleeps beyond that moment. */
static void *go_on_and_ping(void *unused)
{
	struct fsdp_tensor *none;

	(void)unused;
	nap_ms(20);
	must(kill(daemon_broker_pid(&daemon_), SIGCONT) == 0);
	must(get(client, "test/none", 50, &none) == -ETIMEDOUT);
	must(fsdp_ping(mine) == 0);
	return NULL;
}

Test(interrupt_busy, a_signal_is_not_lost_when_the_reply_comes)
{
	pthread_t thread;

	main_thread = pthread_self();
	hook = end_first;
	must(kill(daemon_broker_pid(&daemon_), SIGSTOP) == 0);
	must(pthread_create(&thread, NULL, go_on_and_ping, NULL) == 0);
	cr_expect(eq(int, open_none(), -EINTR), "%s", fsdp_error());
	must(pthread_join(thread, NULL) == 0);
}

/* The other thread receives the reply to the request of the main thread while
 * that one is in here. */
static int end_first_late(unsigned int n)
{
	struct fsdp_tensor *none;

	if (!pthread_equal(pthread_self(), main_thread))
		return atomic_load(&is_over);
	if (!end_first(n))
		return 0;
	must(kill(daemon_broker_pid(&daemon_), SIGCONT) == 0);
	must(get(client, "test/none", 500, &none) == -ETIMEDOUT);
	return 1;
}

static void *read_on(void *unused)
{
	struct fsdp_tensor *tensor;

	(void)unused;
	return (void *)(intptr_t)get(mine, "test/late", -1, &tensor);
}

Test(interrupt_busy, a_signal_is_not_lost_when_another_thread_reads_the_reply)
{
	pthread_t thread;
	void *r;

	must(pthread_create(&thread, NULL, read_on, NULL) == 0);
	wait_until_parked(1);
	must(kill(daemon_broker_pid(&daemon_), SIGSTOP) == 0);
	main_thread = pthread_self();
	hook = end_first_late;
	cr_expect(eq(int, open_none(), -EINTR));
	atomic_store(&is_over, true);
	must(pthread_join(thread, &r) == 0);
	cr_expect(eq(int, (int)(intptr_t)r, -EINTR));
}

/* --- a signal and a reply at the same time -------------------------------- */

static volatile sig_atomic_t is_signalled;

static void note_signal(int number)
{
	(void)number;
	is_signalled = 1;
}

static int end_signalled(void *unused)
{
	(void)unused;
	return is_signalled;
}

static void get_both(void *unused)
{
	const struct fsdp_connect_options options = {
		.path = daemon_socket(&daemon_), .interrupted = end_signalled};
	const struct fsdp_get_options patient = {.timeout_ms = -1};
	const char *other = "test/other";
	struct fsdp_pending *pending;
	struct fsdp_tensor *tensor;
	struct fsdp_client *its;

	(void)unused;
	must(signal(SIGUSR1, note_signal) != SIG_ERR);
	must(fsdp_connect(&options, &its) == 0);
	must(fsdp_get_begin(its, &other, 1, &patient, &pending) == 0);
	must(get(its, "test/late", -1, &tensor) == -EINTR);
}

static bool is_asleep(pid_t pid)
{
	char path[64], state = '?';
	FILE *file;

	(void)snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	file = fopen(path, "re");
	must(file);
	must(fscanf(file, "%*d (%*[^)]) %c", &state) == 1);
	(void)fclose(file);
	return state == 'S';
}

/* While the process is stopped, it gets a signal, a reply to its other request,
 * and then the reply that it waits for. */
Test(interrupt_busy, a_signal_is_not_late_when_another_reply_comes_with_it)
{
	pid_t pid = child_start(get_both, NULL);

	wait_until_parked(2);
	while (!is_asleep(pid))
		;
	must(kill(pid, SIGSTOP) == 0);
	must(waitpid(pid, NULL, WUNTRACED) == pid);
	put(client, "test/other", 1);
	put(client, "test/late", 2);
	wait_until_parked(0);
	must(kill(pid, SIGUSR1) == 0);
	must(kill(pid, SIGCONT) == 0);
	cr_expect(zero(int, child_wait(pid)));
}

/* --- a request that is repeated -------------------------------------------
 * The broker can record no further reply before the client has read those that
 * it got.
 */

#define N_RECORDED 64 /* replies of a session */

static atomic_bool may_read;

static int count_mine(const struct fsdp_peer *peer, void *ret)
{
	if (peer->n_waiting)
		*(uint64_t *)ret = peer->n_requests;
	return 0;
}

/* Return how many requests came from the client that has a get parked. */
static uint64_t count_requests(void)
{
	uint64_t n = 0;

	must(fsdp_clients(client, count_mine, &n) == 0);
	return n;
}

static void begin_gets(struct fsdp_pending *pending[N_RECORDED])
{
	const char *name = "test/a";

	for (int i = 0; i < N_RECORDED; i++)
		must(fsdp_get_begin(mine, &name, 1, NULL, &pending[i]) == 0);
}

static uint64_t n_expected;

/* The thread that reads does not read before the broker has refused to execute
 * the request of the main thread. */
static int end_first_refused(unsigned int n)
{
	struct fsdp_tensor *none;

	if (!pthread_equal(pthread_self(), main_thread)) {
		while (!atomic_load(&may_read))
			nap_ms(1);
		return atomic_load(&is_over);
	}
	if (!end_first(n))
		return 0;
	must(kill(daemon_broker_pid(&daemon_), SIGCONT) == 0);
	while (count_requests() < n_expected)
		nap_ms(1);
	atomic_store(&may_read, true);
	must(get(client, "test/none", 500, &none) == -ETIMEDOUT);
	return 1;
}

Test(interrupt_busy, a_signal_is_not_lost_when_a_request_is_repeated)
{
	struct fsdp_pending *pending[N_RECORDED];
	pthread_t thread;
	void *r;

	put(client, "test/a", 1);
	must(pthread_create(&thread, NULL, read_on, NULL) == 0);
	wait_until_parked(1);
	n_expected = count_requests() + N_RECORDED + 1;
	must(kill(daemon_broker_pid(&daemon_), SIGSTOP) == 0);
	main_thread = pthread_self();
	hook = end_first_refused;
	begin_gets(pending);
	cr_expect(eq(int, open_none(), -EINTR), "%s", fsdp_error());
	atomic_store(&is_over, true);
	must(pthread_join(thread, &r) == 0);
	cr_expect(eq(int, (int)(intptr_t)r, -EINTR));
	for (int i = 0; i < N_RECORDED; i++)
		fsdp_get_cancel(pending[i]);
}

/* --- a broadcast with a limit of lag -------------------------------------- */

#define NAME    "data/weights"
#define N_SLOTS 4

static const struct fsdp_channel_options LAG = {
	.capacity = 4096,
	.n_slots = N_SLOTS,
	.mode = FSDP_CHANNEL_BROADCAST,
	.lag_ms = 1,
};

/* Open a channel whose only consumer keeps all items. */
static struct fsdp_channel *open_full(void)
{
	struct fsdp_channel *from, *slow;

	must(fsdp_channel_open(mine, NAME, &LAG, FSDP_PRODUCER, &from) == 0);
	must(fsdp_channel_open(client, NAME, &LAG, FSDP_CONSUMER, &slow) == 0);
	for (uint64_t i = 1; i <= N_SLOTS; i++)
		item_send_number(from, i);
	return from;
}

/* The first call may be one before the request. */
static int remember_no_signal(unsigned int n)
{
	if (n > 9)
		kill(daemon_broker_pid(&daemon_), SIGCONT);
	return n == 2;
}

/* The stopped broker does not reply to the request to cut the consumer. */
Test(interrupt_channel, a_producer_is_interrupted_while_it_asks_for_a_cut)
{
	struct fsdp_channel *from = open_full();
	struct fsdp_item *item;

	must(kill(daemon_broker_pid(&daemon_), SIGSTOP) == 0);
	atomic_store(&n_asked, 0);
	hook = remember_no_signal;
	cr_expect(eq(int, fsdp_item_begin(from, -1, &item), -EINTR));
	must(kill(daemon_broker_pid(&daemon_), SIGCONT) == 0);
}

static atomic_uint n_elsewhere;

static int end_third(unsigned int n)
{
	static atomic_uint n_here;

	(void)n;
	if (pthread_equal(pthread_self(), main_thread))
		return atomic_fetch_add(&n_here, 1) == 2;
	atomic_fetch_add(&n_elsewhere, 1);
	return 0;
}

/* The descriptor's thread asks for a cut, and gets no reply for as long as the
 * ping of this thread, whose hook is called three times. */
Test(interrupt_channel, the_thread_of_a_descriptor_does_not_call_the_hook)
{
	struct fsdp_channel *from = open_full();
	struct fsdp_item *item;

	main_thread = pthread_self();
	must(kill(daemon_broker_pid(&daemon_), SIGSTOP) == 0);
	cr_assert(ge(int, fsdp_channel_fd(from), 0));
	cr_expect(eq(int, fsdp_item_begin(from, 0, &item), -ETIMEDOUT));
	hook = end_third;
	cr_expect(eq(int, fsdp_ping(mine), -EINTR));
	cr_expect(zero(u32, atomic_load(&n_elsewhere)));
	must(kill(daemon_broker_pid(&daemon_), SIGCONT) == 0);
}

/* The descriptor's thread waits for the reply to its request, too. */
Test(interrupt_channel, the_close_of_a_channel_with_a_descriptor_is_interrupted)
{
	struct fsdp_channel *from = open_full();

	main_thread = pthread_self();
	must(kill(daemon_broker_pid(&daemon_), SIGSTOP) == 0);
	cr_assert(ge(int, fsdp_channel_fd(from), 0));
	hook = end_third;
	cr_expect(eq(int, fsdp_ping(mine), -EINTR));
	hook = end_always;
	cr_expect(eq(int, fsdp_channel_close(from), -EINTR));
	must(kill(daemon_broker_pid(&daemon_), SIGCONT) == 0);
}

/* --- requests whose callers have given up --------------------------------- */

static int join_as(struct fsdp_client *of, uint32_t rank,
		   struct fsdp_comm **ret)
{
	return fsdp_comm_join(of, "test/run", 2, rank, NULL, ret);
}

static void *join_and_leave(void *unused)
{
	struct fsdp_comm *comm;
	int r = join_as(mine, 0, &comm);

	(void)unused;
	return (void *)(intptr_t)(r < 0 ? r : fsdp_comm_leave(comm));
}

/* The broker has both requests of this rank when the other rank joins. */
Test(interrupt_undo, a_rank_whose_join_was_interrupted_can_join_again)
{
	struct fsdp_comm *comm;
	pthread_t thread;
	void *r;

	hook = end_always;
	cr_expect(eq(int, join_as(mine, 0, &comm), -EINTR));
	hook = go_on;
	must(pthread_create(&thread, NULL, join_and_leave, NULL) == 0);
	wait_until_parked(2);
	cr_assert(zero(int, join_as(client, 1, &comm)), "%s", fsdp_error());
	must(pthread_join(thread, &r) == 0);
	cr_expect(zero(int, (int)(intptr_t)r));
	cr_expect(zero(int, fsdp_comm_leave(comm)));
}

/* The other rank need not wait until its time is over. */
Test(interrupt_undo, a_rank_whose_join_was_interrupted_leaves)
{
	struct fsdp_comm *comm;

	hook = end_always;
	cr_expect(eq(int, join_as(mine, 0, &comm), -EINTR));
	hook = go_on;
	cr_assert(zero(int, join_as(client, 1, &comm)), "%s", fsdp_error());
	must(fsdp_ping(mine) == 0);
	cr_expect(eq(int, fsdp_barrier(comm, 10000), -ECONNABORTED));
	cr_expect(zero(int, fsdp_comm_leave(comm)));
}

static int stage_once(struct fsdp_client *of, int32_t timeout_ms,
		      struct fsdp_bundle **ret)
{
	const struct fsdp_bundle_options once = {.flags = FSDP_ONCE,
						 .timeout_ms = timeout_ms};

	return fsdp_bundle_begin(of, "test/model/", &once, ret);
}

/* Nobody would commit or abort the bundle that the interrupted call begins. */
Test(interrupt_undo, a_bundle_whose_begin_was_interrupted_is_staged_by_others)
{
	struct fsdp_bundle *bundle;

	must(stage_once(client, 0, &bundle) == 0);
	hook = end_always;
	cr_expect(eq(int, stage_once(mine, -1, &bundle), -EINTR));
	hook = go_on;
	fsdp_bundle_abort(bundle);
	must(fsdp_ping(mine) == 0);
	cr_assert(zero(int, stage_once(client, 10000, &bundle)), "%s",
		  fsdp_error());
	fsdp_bundle_abort(bundle);
}

Test(interrupt_undo, an_interrupted_begin_of_a_bundle_waits_no_longer)
{
	struct fsdp_bundle *bundle;

	must(stage_once(client, 0, &bundle) == 0);
	hook = end_always;
	cr_expect(eq(int, stage_once(mine, -1, &bundle), -EINTR));
	wait_until_parked(0);
	fsdp_bundle_abort(bundle);
	cr_expect(zero(int, stage_once(client, 0, &bundle)), "%s",
		  fsdp_error());
}
