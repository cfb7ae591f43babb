/*
 * Tests waits in programs that do other work, too: gets that are begun and then
 * polled, and waits that a signal ends.
 */
#include "client/fsdp.h"
#include "client/fsdp_channel.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"
#include "tests/lib/impatient.h"
#include "tests/lib/leaks.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const struct fsdp_spec VECTOR = {FSDP_F32, 1, {256}};

static struct daemon daemon_;
static struct fsdp_client *client; /* used by the thread that waits */
static struct fsdp_client *other;

/* These are what the hook of `client` returns, and how often it was called. */
static atomic_bool is_wanted;
static atomic_uint n_asked;

static int ask(void *data)
{
	cr_assert(eq(ptr, data, &daemon_));
	atomic_fetch_add(&n_asked, 1);
	return atomic_load(&is_wanted);
}

static struct fsdp_client *open_client(fsdp_interrupt_fn *fn, uint64_t budget)
{
	struct fsdp_connect_options options = {.path = daemon_socket(&daemon_),
					       .budget = budget,
					       .interrupted = fn,
					       .interrupted_data = &daemon_};
	struct fsdp_client *ret;

	cr_assert(zero(int, fsdp_connect(&options, &ret)), "%s", fsdp_error());
	return ret;
}

static void setup(void)
{
	daemon_start(&daemon_);
	client = open_client(ask, 0);
	other = open_client(NULL, 0);
}

static void setup_supervised(void)
{
	daemon_start_supervised(&daemon_);
	client = open_client(NULL, 0);
	other = open_client(NULL, 0);
}

static void setup_restart(void)
{
	daemon_start_supervised(&daemon_);
	client = open_client(ask, 0);
	other = open_client(NULL, 0);
}

static void teardown(void)
{
	fsdp_close(client);
	fsdp_close(other);
	daemon_stop(&daemon_);
}

CHECKED_SUITE(pending, setup, teardown, .timeout = 300);
CHECKED_SUITE(pending_restart, setup_supervised, teardown, .timeout = 300);
CHECKED_SUITE(interrupt, setup, teardown, .timeout = 300);
CHECKED_SUITE(interrupt_restart, setup_restart, teardown, .timeout = 300);

static void put(const char *name)
{
	struct fsdp_publication it = {.name = name, .flags = FSDP_REPLACE};

	cr_assert(
		zero(int, fsdp_alloc(other, &VECTOR, 1, NULL, 0, &it.tensor)));
	cr_assert(zero(int, fsdp_publish(other, &it, 1)), "%s", fsdp_error());
	fsdp_free(it.tensor);
}

static void expect_name(const struct fsdp_tensor *tensor, const char *name)
{
	struct fsdp_info info = {.struct_size = sizeof(info)};

	cr_assert(zero(int, fsdp_tensor_info(tensor, &info)));
	cr_expect(eq(str, (char *)info.name, (char *)name));
}

static int sum_waiting(const struct fsdp_peer *peer, void *data)
{
	*(uint32_t *)data += peer->n_waiting;
	return 0;
}

static void wait_until_parked(uint32_t n)
{
	uint32_t n_waiting = 0;

	while (n_waiting != n) {
		n_waiting = 0;
		cr_assert(zero(int,
			       fsdp_clients(other, sum_waiting, &n_waiting)));
	}
}

static int count(const struct fsdp_entry *entry, void *data)
{
	(void)entry;
	++*(int *)data;
	return 0;
}

/* Check that all holds of a removed name were returned. */
static void expect_none_held(const char *name)
{
	int n = 0;

	cr_assert(zero(int, fsdp_remove(other, &name, 1)));
	cr_assert(zero(int, fsdp_limbo(other, count, &n)));
	cr_expect(zero(int, n));
}

/* --- gets that are begun ------------------------------------------------- */

static struct fsdp_pending *begin(const char *name, int32_t timeout_ms)
{
	struct fsdp_get_options options = {.timeout_ms = timeout_ms};
	struct fsdp_pending *ret;

	cr_assert(zero(int, fsdp_get_begin(client, &name, 1, &options, &ret)),
		  "%s", fsdp_error());
	return ret;
}

static bool is_readable(int timeout_ms)
{
	struct pollfd item = {.fd = fsdp_fd(client), .events = POLLIN};

	return poll(&item, 1, timeout_ms) > 0;
}

/* Finish the get as an event loop does. */
static int end(struct fsdp_pending *pending, struct fsdp_tensor **ret)
{
	int r;

	while ((r = fsdp_get_end(pending, ret)) == -EAGAIN)
		cr_assert(is_readable(-1));
	return r;
}

Test(pending, a_get_can_be_ended_when_the_descriptor_is_readable)
{
	struct fsdp_pending *pending = begin("t/a", -1);
	struct fsdp_tensor *tensor;

	wait_until_parked(1);
	cr_expect(not(is_readable(0)));
	cr_expect(eq(int, fsdp_get_end(pending, &tensor), -EAGAIN));
	put("t/a");
	cr_assert(zero(int, end(pending, &tensor)), "%s", fsdp_error());
	expect_name(tensor, "t/a");
	cr_expect(not(is_readable(0)), "nothing is pending");
	fsdp_free(tensor);
	expect_none_held("t/a");
}

Test(pending, a_get_of_a_cached_name_ends_at_once)
{
	struct fsdp_tensor *tensors[2];
	const char *name = "t/a";

	put(name);
	cr_assert(zero(int, fsdp_get(client, &name, 1, NULL, tensors)));
	cr_assert(zero(int, fsdp_get_end(begin(name, -1), &tensors[1])));
	expect_name(tensors[1], name);
}

Test(pending, several_gets_end_in_the_order_of_publication)
{
	static const char *const names[] = {"t/0", "t/1", "t/2"};
	struct fsdp_pending *pending[3];
	struct fsdp_tensor *tensor;

	for (int i = 0; i < 3; i++)
		pending[i] = begin(names[i], -1);
	wait_until_parked(3);
	for (int i = 2; i >= 0; i--) {
		put(names[i]);
		cr_assert(zero(int, end(pending[i], &tensor)));
		expect_name(tensor, names[i]);
		for (int j = 0; j < i; j++)
			cr_expect(eq(int, fsdp_get_end(pending[j], &tensor),
				     -EAGAIN));
	}
}

Test(pending, the_broker_enforces_the_time_out)
{
	struct fsdp_tensor *tensor;

	cr_assert(eq(int, end(begin("t/never", 20), &tensor), -ETIMEDOUT));
	cr_assert(eq(int, end(begin("t/never", 0), &tensor), -ENOENT));
}

Test(pending, a_tensor_that_arrives_after_its_get_was_cancelled_is_released)
{
	struct fsdp_pending *pending = begin("t/a", -1);
	struct fsdp_tensor *tensor;

	wait_until_parked(1);
	fsdp_get_cancel(pending);
	fsdp_get_cancel(NULL);
	put("t/a");
	cr_assert(zero(int, fsdp_ping(client)));
	expect_none_held("t/a");
	/* Here the reply has arrived before the get is cancelled. */
	pending = begin("t/b", -1);
	wait_until_parked(1);
	put("t/b");
	cr_assert(is_readable(-1));
	cr_assert(zero(int, fsdp_ping(client)));
	fsdp_get_cancel(pending);
	cr_expect(not(is_readable(0)));
	expect_none_held("t/b");
	cr_expect(eq(int, fsdp_get_end(NULL, &tensor), -EINVAL));
}

struct wait {
	const char *name;
	int r;
};

static void *wait_for(void *data)
{
	struct fsdp_get_options options = {.timeout_ms = -1};
	struct wait *it = data;
	struct fsdp_tensor *tensor;

	it->r = fsdp_get(client, &it->name, 1, &options, &tensor);
	if (it->r == 0)
		fsdp_free(tensor);
	return NULL;
}

Test(pending, a_reply_received_by_another_thread_makes_the_descriptor_readable)
{
	struct wait wait = {"t/b", 1};
	struct fsdp_pending *pending;
	struct fsdp_tensor *tensor;
	pthread_t thread;

	pthread_create(&thread, NULL, wait_for, &wait);
	wait_until_parked(1);
	pending = begin("t/a", -1);
	wait_until_parked(2);
	cr_expect(not(is_readable(0)));
	put("t/a");
	/* The ping's reply comes after that of the get, and another thread
	 * reads both. */
	cr_assert(zero(int, fsdp_ping(client)));
	cr_assert(is_readable(-1));
	cr_assert(zero(int, end(pending, &tensor)));
	expect_name(tensor, "t/a");
	put("t/b");
	pthread_join(thread, NULL);
	cr_expect(zero(int, wait.r));
}

/* --- bundles that are begun ---------------------------------------------- */

static void commit(const char *bundle_name, const char *member)
{
	struct fsdp_bundle_options options = {.struct_size = sizeof(options),
					      .flags = FSDP_REPLACE};
	struct fsdp_bundle *bundle;
	struct fsdp_tensor *tensor;

	cr_assert(zero(
		int, fsdp_bundle_begin(other, bundle_name, &options, &bundle)));
	cr_assert(zero(
		int, fsdp_bundle_alloc(bundle, &member, &VECTOR, 1, &tensor)));
	cr_assert(zero(int, fsdp_bundle_commit(bundle, NULL)), "%s",
		  fsdp_error());
	fsdp_free(tensor);
}

static struct fsdp_pending *begin_bundle(uint64_t newer_than)
{
	struct fsdp_get_options options = {.struct_size = sizeof(options),
					   .timeout_ms = -1,
					   .newer_than = newer_than};
	struct fsdp_pending *ret;

	cr_assert(
		zero(int, fsdp_bundle_get_begin(client, "m/", &options, &ret)),
		"%s", fsdp_error());
	return ret;
}

/* Finish the get as an event loop does, and return the bundle's version. */
static uint64_t end_bundle(struct fsdp_pending *pending)
{
	struct fsdp_info info = {.struct_size = sizeof(info)};
	struct fsdp_tensor **tensors;
	size_t n;
	int r;

	while ((r = fsdp_bundle_get_end(pending, &tensors, &n)) == -EAGAIN)
		cr_assert(is_readable(-1));
	cr_assert(zero(int, r), "%s", fsdp_error());
	cr_assert(eq(sz, n, 1));
	expect_name(tensors[0], "m/w");
	cr_assert(zero(int, fsdp_tensor_info(tensors[0], &info)));
	fsdp_free(tensors[0]);
	free(tensors);
	return info.version;
}

Test(pending, the_get_of_a_bundle_can_be_ended_when_the_descriptor_is_readable)
{
	struct fsdp_pending *pending = begin_bundle(0);
	struct fsdp_tensor **tensors;
	size_t n;

	wait_until_parked(1);
	cr_expect(not(is_readable(0)));
	cr_expect(eq(int, fsdp_bundle_get_end(pending, &tensors, &n), -EAGAIN));
	commit("m/", "m/w");
	cr_expect(eq(ulong, end_bundle(pending), 1));
	cr_expect(not(is_readable(0)), "nothing is pending");
	pending = begin_bundle(1);
	wait_until_parked(1);
	commit("m/", "m/w");
	cr_expect(eq(ulong, end_bundle(pending), 2));
	expect_none_held("m/");
}

Test(pending, a_bundle_that_arrives_after_its_get_was_cancelled_is_released)
{
	struct fsdp_pending *pending = begin_bundle(0);

	wait_until_parked(1);
	fsdp_get_cancel(pending);
	commit("m/", "m/w");
	cr_assert(zero(int, fsdp_ping(client)));
	expect_none_held("m/");
	/* Here the reply has arrived before the get is cancelled. */
	pending = begin_bundle(0);
	wait_until_parked(1);
	commit("m/", "m/w");
	cr_assert(is_readable(-1));
	cr_assert(zero(int, fsdp_ping(client)));
	fsdp_get_cancel(pending);
	expect_none_held("m/");
}

Test(pending, each_kind_of_get_has_its_own_function_to_end_it)
{
	struct fsdp_get_options options = {.struct_size = sizeof(options),
					   .known_only = true};
	struct fsdp_pending *names = begin("t/a", -1), *it = begin_bundle(0);
	struct fsdp_tensor *tensor, **tensors;
	size_t n;

	cr_expect(eq(int, fsdp_get_end(it, &tensor), -EINVAL));
	cr_expect(eq(int, fsdp_bundle_get_end(names, &tensors, &n), -EINVAL));
	cr_expect(eq(int, fsdp_bundle_get_end(NULL, &tensors, &n), -EINVAL));
	cr_expect(eq(int, fsdp_bundle_get_begin(client, "m/", &options, &it),
		     -EINVAL));
	fsdp_get_cancel(names);
	fsdp_get_cancel(it);
}

Test(pending_restart, a_pending_bundle_survives_the_broker)
{
	struct fsdp_pending *pending = begin_bundle(0);

	wait_until_parked(1);
	daemon_kill_broker(&daemon_);
	commit("m/", "m/w");
	cr_expect(eq(ulong, end_bundle(pending), 1));
}

Test(pending_restart, a_pending_get_survives_the_broker)
{
	struct fsdp_pending *pending = begin("t/a", -1);
	struct fsdp_tensor *tensor;

	wait_until_parked(1);
	daemon_kill_broker(&daemon_);
	put("t/a");
	cr_assert(zero(int, end(pending, &tensor)), "%s", fsdp_error());
	expect_name(tensor, "t/a");
}

/* The child inherits the socket to the old broker and keeps it open. */
Test(pending_restart, a_forked_child_does_not_make_the_descriptor_readable)
{
	struct fsdp_pending *pending = begin("t/a", -1);
	struct fsdp_tensor *tensor;
	pid_t child;

	wait_until_parked(1);
	cr_assert(not(is_readable(0)));
	child = fork();
	if (child == 0)
		for (;;)
			pause();
	cr_assert(gt(int, child, 0));
	daemon_kill_broker(&daemon_);
	put("t/a");
	cr_assert(zero(int, end(pending, &tensor)), "%s", fsdp_error());
	pending = begin("t/never", -1);
	wait_until_parked(1);
	cr_expect(not(is_readable(0)));
	fsdp_get_cancel(pending);
	cr_assert(zero(int, kill(child, SIGKILL)));
	cr_assert(eq(int, waitpid(child, NULL, 0), child));
}

/* The client has not reconnected to the new broker yet when it releases what
 * the old one granted. */
Test(pending_restart, a_get_cancelled_after_a_restart_releases_its_tensor)
{
	struct fsdp_pending *pending = begin("t/a", -1);
	const char *name = "t/a";
	int n = 0;

	wait_until_parked(1);
	put(name);
	/* The ping's answer comes after that of the get. */
	cr_assert(zero(int, fsdp_ping(client)));
	cr_assert(zero(int, fsdp_remove(other, &name, 1)));
	cr_assert(zero(int, fsdp_limbo(other, count, &n)));
	cr_assert(eq(int, n, 1), "the get holds it");
	daemon_kill_broker(&daemon_);
	cr_assert(zero(int, fsdp_ping(other)), "%s", fsdp_error());
	fsdp_get_cancel(pending);
	n = 0;
	cr_assert(zero(int, fsdp_limbo(other, count, &n)));
	cr_expect(zero(int, n));
}

/* This stands for the lock of an interpreter that runs one thread at a time. */
static pthread_mutex_t running = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool wants_to_run;

static int run_handlers(void *data)
{
	(void)data;
	atomic_store(&wants_to_run, true);
	pthread_mutex_lock(&running);
	pthread_mutex_unlock(&running);
	return 0;
}

Test(pending_restart, a_release_does_not_wait_for_another_thread_s_hook)
{
	struct wait wait = {"t/b", 1};
	const char *name = "t/a";
	struct fsdp_tensor *held;
	pthread_t thread;

	fsdp_close(client);
	client = open_client(run_handlers, 0);
	put(name);
	cr_assert(zero(int, fsdp_get(client, &name, 1, NULL, &held)));
	pthread_create(&thread, NULL, wait_for, &wait);
	wait_until_parked(1);
	pthread_mutex_lock(&running);
	atomic_store(&wants_to_run, false);
	while (!atomic_load(&wants_to_run))
		sched_yield();
	cr_assert(zero(int, fsdp_remove(other, &name, 1)));
	daemon_kill_broker(&daemon_);
	cr_assert(zero(int, fsdp_ping(other)), "%s", fsdp_error());
	fsdp_free(held);
	pthread_mutex_unlock(&running);
	put("t/b");
	pthread_join(thread, NULL);
	cr_expect(zero(int, wait.r));
	expect_none_held("t/b");
}

/* The broker is stopped for longer than the client waits for it. */
Test(pending_restart, a_pending_get_whose_reconnect_failed_is_sent_again)
{
	struct fsdp_tensor *tensor;
	struct fsdp_pending *pending;

	fsdp_close(client);
	client = connect_impatiently(daemon_socket(&daemon_), 100);
	pending = begin("t/a", -1);
	wait_until_parked(1);
	cr_assert(zero(int, kill(daemon_.pid, SIGSTOP)));
	cr_assert(zero(int, kill(daemon_broker_pid(&daemon_), SIGKILL)));
	while (fsdp_ping(client) == 0)
		;
	cr_assert(zero(int, kill(daemon_.pid, SIGCONT)));
	put("t/a");
	/* The ping's answer comes after that of the get. */
	while (fsdp_ping(client) != 0)
		;
	cr_assert(zero(int, end(pending, &tensor)), "%s", fsdp_error());
	expect_name(tensor, "t/a");
	cr_expect(not(is_readable(0)), "nothing is pending");
	fsdp_free(tensor);
	expect_none_held("t/a");
}

/* --- waits that a signal ends -------------------------------------------- */

static void on_signal(int number)
{
	(void)number;
}

static void catch_signals(void)
{
	struct sigaction action = {.sa_handler = on_signal};

	cr_assert(zero(int, sigaction(SIGUSR1, &action, NULL)));
}

Test(interrupt, a_wait_ends_when_the_hook_returns_true)
{
	struct wait wait = {"t/a", 1};
	pthread_t thread;

	catch_signals();
	pthread_create(&thread, NULL, wait_for, &wait);
	wait_until_parked(1);
	atomic_store(&is_wanted, true);
	pthread_kill(thread, SIGUSR1);
	pthread_join(thread, NULL);
	cr_expect(eq(int, wait.r, -EINTR));
	/* If the get is granted after the interrupt, the hold is dropped. */
	atomic_store(&is_wanted, false);
	put("t/a");
	cr_assert(zero(int, fsdp_ping(client)));
	expect_none_held("t/a");
}

Test(interrupt, a_wait_continues_when_the_hook_returns_false)
{
	struct wait wait = {"t/a", 1};
	pthread_t thread;

	catch_signals();
	pthread_create(&thread, NULL, wait_for, &wait);
	wait_until_parked(1);
	while (atomic_load(&n_asked) < 3)
		pthread_kill(thread, SIGUSR1);
	put("t/a");
	pthread_join(thread, NULL);
	cr_expect(zero(int, wait.r));
}

/* One thread reads replies for all, and the others wait for it. No thread got
 * the signal itself. */
Test(interrupt, the_hook_is_called_for_all_threads_that_wait)
{
	struct wait waits[3] = {{"t/a", 1}, {"t/b", 1}, {"t/c", 1}};
	pthread_t threads[3];

	for (int i = 0; i < 3; i++)
		pthread_create(&threads[i], NULL, wait_for, &waits[i]);
	wait_until_parked(3);
	atomic_store(&is_wanted, true);
	for (int i = 0; i < 3; i++) {
		pthread_join(threads[i], NULL);
		cr_expect(eq(int, waits[i].r, -EINTR));
	}
}

struct producer {
	struct fsdp_client *client;
	int r;
};

static void *alloc_patiently(void *data)
{
	struct producer *it = data;
	struct fsdp_tensor *tensor;

	it->r = fsdp_alloc(it->client, &VECTOR, 1, NULL, -1, &tensor);
	return NULL;
}

Test(interrupt, the_hook_ends_an_allocation_that_waits_for_memory)
{
	struct fsdp_client *small = open_client(ask, 1024);
	struct producer producer = {small, 1};
	struct fsdp_tensor *tensor;
	pthread_t thread;

	cr_assert(zero(int, fsdp_alloc(small, &VECTOR, 1, NULL, 0, &tensor)));
	cr_assert(zero(
		int,
		fsdp_publish(small,
			     &(struct fsdp_publication){.tensor = tensor}, 1)));
	pthread_create(&thread, NULL, alloc_patiently, &producer);
	wait_until_parked(1);
	atomic_store(&is_wanted, true);
	pthread_join(thread, NULL);
	cr_expect(eq(int, producer.r, -EINTR));
	atomic_store(&is_wanted, false);
	/* The allocation that was interrupted must not keep its memory,
	 * although no call waits for it any more. */
	cr_assert(zero(int, fsdp_release(tensor)));
	cr_assert(zero(int, fsdp_alloc(small, &VECTOR, 1, NULL, -1, &tensor)));
	fsdp_close(small);
}

Test(interrupt, the_hook_ends_a_call_to_a_broker_that_is_stopped)
{
	pid_t broker = daemon_broker_pid(&daemon_);

	cr_assert(zero(int, kill(broker, SIGSTOP)));
	atomic_store(&is_wanted, true);
	cr_expect(eq(int, fsdp_ping(client), -EINTR));
	atomic_store(&is_wanted, false);
	cr_assert(zero(int, kill(broker, SIGCONT)));
	cr_expect(zero(int, fsdp_ping(client)));
}

static void *release(void *tensor)
{
	struct fsdp_tensor *held = tensor;

	return (void *)(intptr_t)fsdp_release_sync(client, &held, 1);
}

/* The broker stays stopped until the hook would have been called. */
Test(interrupt, the_hook_does_not_end_a_release)
{
	pid_t broker = daemon_broker_pid(&daemon_);
	struct wait wait = {"t/never", 1};
	struct fsdp_tensor *tensor;
	const char *name = "t/a";
	pthread_t reader, thread;
	void *r = NULL;

	put(name);
	cr_assert(zero(int, fsdp_get(client, &name, 1, NULL, &tensor)));
	cr_assert(zero(int, kill(broker, SIGSTOP)));
	pthread_create(&thread, NULL, release, tensor);
	pthread_create(&reader, NULL, wait_for, &wait);
	atomic_store(&is_wanted, true);
	pthread_join(reader, NULL);
	cr_expect(eq(int, wait.r, -EINTR));
	cr_expect(eq(int, fsdp_ping(client), -EINTR));
	cr_assert(zero(int, kill(broker, SIGCONT)));
	pthread_join(thread, &r);
	cr_expect(zero(long, (intptr_t)r));
	atomic_store(&is_wanted, false);
	cr_expect(ne(int, fsdp_release(tensor), 0), "it is held no more");
	expect_none_held(name);
}

Test(interrupt, the_hook_ends_a_call_that_reconnects)
{
	atomic_store(&is_wanted, true);
	daemon_kill_broker(&daemon_);
	cr_expect(eq(int, fsdp_ping(client), -EINTR));
	atomic_store(&is_wanted, false);
	daemon_restart(&daemon_);
}

Test(interrupt, a_channel_whose_open_was_interrupted_is_closed)
{
	struct fsdp_channel_options options = {
		.struct_size = sizeof(options), .capacity = 4096, .n_slots = 1};
	pid_t broker = daemon_broker_pid(&daemon_);
	struct fsdp_channel *channel;
	int r;

	cr_assert(zero(int, kill(broker, SIGSTOP)));
	atomic_store(&is_wanted, true);
	cr_expect(eq(int,
		     fsdp_channel_open(client, "t/ch", &options, FSDP_PRODUCER,
				       &channel),
		     -EINTR));
	atomic_store(&is_wanted, false);
	cr_assert(zero(int, kill(broker, SIGCONT)));
	/* After the channel has ended, another one can have its name. */
	options.capacity = 8192;
	do
		r = fsdp_channel_open(client, "t/ch", &options, FSDP_PRODUCER,
				      &channel);
	while (r == -EINVAL);
	cr_assert(zero(int, r), "%s", fsdp_error());
	cr_expect(zero(int, fsdp_channel_close(channel)));
}

/* The broker is away, so the end of the get waits for it. */
static void expect_interrupted_end(struct fsdp_pending *pending, bool is_bundle)
{
	struct fsdp_tensor *tensor, **tensors;
	size_t n;

	wait_until_parked(1);
	cr_assert(not(is_readable(0)));
	cr_assert(zero(int, kill(daemon_.pid, SIGSTOP)));
	cr_assert(zero(int, kill(daemon_broker_pid(&daemon_), SIGKILL)));
	cr_assert(is_readable(-1));
	atomic_store(&is_wanted, true);
	cr_expect(eq(int,
		     is_bundle ? fsdp_bundle_get_end(pending, &tensors, &n)
			       : fsdp_get_end(pending, &tensor),
		     -EINTR));
	atomic_store(&is_wanted, false);
	cr_assert(zero(int, kill(daemon_.pid, SIGCONT)));
	cr_expect(not(is_readable(0)), "nothing is pending");
}

Test(interrupt_restart, the_hook_ends_the_end_of_a_get_that_reconnects)
{
	expect_interrupted_end(begin("t/a", -1), false);
	/* If the get is granted after the interrupt, the hold is dropped. */
	put("t/a");
	cr_assert(zero(int, fsdp_ping(client)));
	expect_none_held("t/a");
}

Test(interrupt_restart, the_hook_ends_the_end_of_a_bundle_s_get)
{
	expect_interrupted_end(begin_bundle(0), true);
	commit("m/", "m/w");
	cr_assert(zero(int, fsdp_ping(client)));
	expect_none_held("m/");
}

/* The request needs no reply, so the client gives up and sends the request
 * again when it reconnects. */
Test(interrupt_restart, an_interrupted_close_is_done_by_the_next_broker)
{
	struct fsdp_channel_options options = {
		.struct_size = sizeof(options), .capacity = 4096, .n_slots = 1};
	struct fsdp_channel *channel;

	cr_assert(zero(int, fsdp_channel_open(client, "t/ch", &options,
					      FSDP_PRODUCER, &channel)));
	cr_assert(zero(int, kill(daemon_broker_pid(&daemon_), SIGSTOP)));
	atomic_store(&is_wanted, true);
	cr_expect(eq(int, fsdp_channel_close(channel), -EINTR));
	atomic_store(&is_wanted, false);
	daemon_kill_broker(&daemon_);
	/* The channel has ended, so that another one can have its name. */
	options.capacity = 8192;
	cr_assert(zero(int, fsdp_channel_open(client, "t/ch", &options,
					      FSDP_PRODUCER, &channel)));
	cr_expect(zero(int, fsdp_channel_close(channel)));
}
