/*
 * Tests the order between streams if the device cannot write timelines.
 * Interprocess events then order streams. Their number is limited, and the
 * producer tells the broker of them.
 *
 * test_stream.c, which also runs in this mode, has the tests that do not depend
 * on it.
 */
#include "tests/lib/check.h"
#include "tests/lib/gpu.h"
#include "tests/lib/impatient.h"
#include "tests/lib/stage.h"
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void set_up(void)
{
	setenv("FAKECUDA_WITHOUT", "memops", 1);
	setenv("FAKECUDA_COUNT", "1", 1);
	stage_open();
}

TestSuite(stream_events, .init = set_up, .fini = stage_close, .timeout = 300);

/* This is the limit of events in flight and of releases that wait. */
#define LIMIT 1000

/* --- what a consumer finds ----------------------------------------------- */

/* The producer drops the event after it has told the broker. */
Test(stream_events, a_late_reader_finds_the_tensor_written)
{
	struct fsdp_tensor *tensor = NULL, *view = NULL;
	const struct fsdp_spec half = {FSDP_U8, 1, {STAGE_SIZE / 2}};
	uint8_t seen[STAGE_SIZE];
	CUstream stream;

	cr_assert(zero(int, actor_run(&stage.producer, produce_ticket)));
	cr_assert(zero(int,
		       fsdp_ticket_redeem(stage.client, &stage.shared->ticket,
					  1, &tensor)));
	cr_assert(zero(int, fsdp_view(tensor, &half, NULL, 0, &view)));
	cr_expect(eq(int, fsdp_tensor_check(tensor), -EAGAIN));
	open_gate();
	cr_assert(zero(int, actor_run(&stage.producer, produce_finishes)));
	stream = stream_make(gpu_nth(0));
	cr_expect(zero(int, fsdp_tensor_wait(tensor, stream, 0)), "%s",
		  fsdp_error());
	cr_expect(zero(int, fsdp_tensor_check(view)), "%s", fsdp_error());
	cr_assert(zero(int, fsdp_copy_out(seen, tensor, 0, STAGE_SIZE)));
	cr_expect(is_filled(seen, STAGE_SIZE, STAGE_VALUE));
	fsdp_free(view);
	fsdp_free(tensor);
}

static int produce_again(void)
{
	must(produce_lets_go() == 0);
	return produce();
}

/* When the reader opens the event, it already has another use. */
Test(stream_events, a_stream_does_not_wait_for_a_later_use_of_its_event)
{
	struct fsdp_tensor *tensor = NULL;
	CUstream stream;

	open_gate();
	cr_assert(zero(int, actor_run(&stage.producer, produce_ticket)));
	cr_assert(zero(int,
		       fsdp_ticket_redeem(stage.client, &stage.shared->ticket,
					  1, &tensor)));
	cr_assert(zero(int, actor_run(&stage.producer, produce_finishes)));
	cr_assert(zero(int, actor_run(&stage.producer, produce_again)));
	stream = stream_make(gpu_nth(0));
	cr_assert(zero(int, fsdp_tensor_wait(tensor, stream, 0)));
	cr_expect(stream_finish(stream), "the gate of the next is closed");
	fsdp_free(tensor);
	open_gate();
}

static void *wait_for_a(void *data)
{
	struct fsdp_tensor *tensor = NULL;

	*(int *)data = get_on("t/a", NULL, -1, &tensor);
	if (*(int *)data == 0)
		fsdp_free(tensor);
	return NULL;
}

Test(stream_events, a_thread_waits_for_the_device)
{
	pthread_t thread;
	int r = 1;

	cr_assert(zero(int, actor_run(&stage.producer, produce)));
	must(pthread_create(&thread, NULL, wait_for_a, &r) == 0);
	open_gate();
	pthread_join(thread, NULL);
	cr_expect(zero(int, r));
}

/* --- how many ------------------------------------------------------------ */

static void publish_many(struct fsdp_tensor *tensor, CUstream stream)
{
	for (int i = 0; i < LIMIT; i++)
		must(publish_on(tensor, NULL, stream) == 0);
}

Test(stream_events, the_number_of_events_in_flight_is_limited_exactly)
{
	struct fsdp_tensor *tensor = alloc();
	CUstream stream = stream_make(gpu_nth(0));

	need_fake("events must order instead of timelines");
	stream_hold(stream, &stage.shared->gate);
	publish_many(tensor, stream);
	cr_expect(eq(int, publish_on(tensor, "t/own", stream), -EAGAIN));
	cr_expect(ne(ptr, strstr(fsdp_error(), "1000"), NULL), "%s",
		  fsdp_error());
	cr_expect(not(stream_is_done(stream)), "nobody has waited for it");
	open_gate();
	cr_assert(stream_finish(stream));
	cr_expect(zero(int, publish_on(tensor, "t/own", stream)), "%s",
		  fsdp_error());
	publish_many(alloc(), stream);
	fsdp_free(tensor);
}

/* Only the last of many publications determines the order. */
Test(stream_events, a_tensor_that_was_published_repeatedly_is_released)
{
	struct fsdp_tensor *tensor = alloc();
	CUstream stream = stream_make(gpu_nth(0));

	stream_hold(stream, &stage.shared->gate);
	for (int i = 0; i < 10; i++)
		cr_assert(zero(int, publish_on(tensor, NULL, stream)));
	fsdp_free(tensor);
	cr_expect(eq(u64, n_slots(), 1));
	open_gate();
	cr_assert(stream_finish(stream));
	cr_expect(await_slots(0));
}

Test(stream_events, the_number_of_waiting_releases_is_limited_exactly)
{
	struct fsdp_tensor *tensor = alloc();
	CUstream stream = stream_make(gpu_nth(0));

	need_fake("events must order instead of timelines");
	stream_hold(stream, &stage.shared->gate);
	for (int i = 0; i < LIMIT; i++) {
		must(fsdp_hold(tensor) == 0);
		cr_assert(zero(int, fsdp_release_on(tensor, stream)), "%s",
			  fsdp_error());
	}
	cr_expect(eq(int, fsdp_release_on(tensor, stream), -EAGAIN));
	cr_expect(ne(ptr, strstr(fsdp_error(), "1000"), NULL), "%s",
		  fsdp_error());
	cr_expect(not(stream_is_done(stream)), "nobody has waited for it");
	open_gate();
	cr_assert(stream_finish(stream));
	cr_assert(zero(int, fsdp_release_on(tensor, stream)), "%s",
		  fsdp_error());
	fsdp_free(tensor);
	cr_expect(await_slots(0));
}

Test(stream_events, a_release_waits_only_for_its_own_stream)
{
	struct fsdp_tensor *slow = alloc(), *fast = alloc();
	CUstream first = stream_make(gpu_nth(0));
	CUstream second = stream_make(gpu_nth(0));

	stream_hold(first, &stage.shared->gate);
	cr_assert(zero(int, fsdp_release_on(slow, first)));
	cr_assert(zero(int, fsdp_release_on(fast, second)));
	fsdp_free(slow);
	fsdp_free(fast);
	cr_assert(stream_finish(second));
	cr_expect(await_slots(1));
	open_gate();
	cr_expect(await_slots(0));
}

/* Returns the number of events of this process, by the files of the fake
 * driver. */
static int n_events(void)
{
	DIR *dir = opendir(getenv("FAKECUDA_DIR"));
	char prefix[32];
	int n = 0;

	must(dir != NULL);
	snprintf(prefix, sizeof(prefix), "event.%d.", (int)getpid());
	for (struct dirent *entry; (entry = readdir(dir));)
		n += strncmp(entry->d_name, prefix, strlen(prefix)) == 0;
	closedir(dir);
	return n;
}

static void hand_over(CUstream writer, CUstream reader)
{
	struct fsdp_tensor *tensor = alloc();

	stream_fill(writer, tensor, 3);
	must(publish_on(tensor, "t/own", writer) == 0);
	fsdp_free(tensor);
	must(get_on("t/own", reader, 0, &tensor) == 0);
	must(fsdp_release_on(tensor, reader) == 0);
	fsdp_free(tensor);
	must(stream_finish(reader));
}

Test(stream_events, many_publications_need_few_events)
{
	CUstream writer = stream_make(gpu_nth(0));
	CUstream reader = stream_make(gpu_nth(0));
	int before;

	for (int i = 0; i < 10; i++)
		hand_over(writer, reader);
	before = n_events();
	for (int i = 0; i < 200; i++)
		hand_over(writer, reader);
	cr_expect(eq(int, n_events(), before));
	remove_name("t/own");
	cr_expect(await_slots(0));
}

/* --- in the other process, which is the consumer here -------------------- */

static int consume(void)
{
	struct fsdp_tensor *tensor = NULL;
	CUstream stream = stream_make(gpu_nth(0));
	long opened, closed;

	for (int i = 0; i < 50; i++) {
		must(get_on("t/own", stream, 0, &tensor) == 0);
		fsdp_free(tensor);
	}
	opened = gpu_count(getpid(), "IpcOpenEventHandle");
	closed = gpu_count(getpid(), "EventDestroy");
	must(opened > 0);
	return opened == closed ? 0 : -EIO;
}

Test(stream_events, a_consumer_closes_the_events_that_it_opens)
{
	struct fsdp_tensor *tensor = alloc();
	CUstream stream = stream_make(gpu_nth(0));

	need_fake("events must order instead of timelines");
	stream_hold(stream, &stage.shared->gate);
	cr_assert(zero(int, publish_on(tensor, "t/own", stream)));
	cr_expect(zero(int, actor_run(&stage.producer, consume)));
	open_gate();
	fsdp_free(tensor);
}

/* --- death --------------------------------------------------------------- */

static struct fsdp_tensor *get_tainted(const char *name)
{
	const struct fsdp_get_options options = {.accepts_tainted = true};
	struct fsdp_tensor *tensor = NULL;

	must(fsdp_get(stage.client, &name, 1, &options, &tensor) == 0);
	return tensor;
}

Test(stream_events, a_thread_that_waits_for_a_dead_producer_gets_an_error)
{
	struct fsdp_tensor *tensor = NULL;
	pthread_t thread;
	int r = 0;

	cr_assert(zero(int, actor_run(&stage.producer, produce)));
	must(pthread_create(&thread, NULL, wait_for_a, &r) == 0);
	actor_kill(&stage.producer);
	pthread_join(thread, NULL);
	cr_expect(eq(int, r, -EOWNERDEAD));
	tensor = get_tainted("t/a");
	cr_expect(eq(int, fsdp_tensor_check(tensor), -EOWNERDEAD));
	fsdp_free(tensor);
	remove_name("t/a");
	cr_expect(await_slots(0));
}

/* A dead producer's event is never reached, unlike a timeline, which the broker
 * ends. So the stream keeps waiting, fsdp_tensor_check() reports the death, and
 * the connection cannot be closed in the usual way. */
Test(stream_events, a_stream_that_waits_for_a_dead_producer_keeps_waiting)
{
	struct fsdp_client *hurried;
	struct fsdp_tensor *tensor = NULL;
	struct figures figures;
	CUstream stream;

	need_fake("events must order instead of timelines");
	cr_assert(zero(int, actor_run(&stage.producer, produce)));
	stream = stream_make(gpu_nth(0));
	hurried = connect_impatiently(stage.shared->socket, 200);
	fsdp_close(stage.client);
	stage.client = hurried;
	cr_assert(zero(int, get_on("t/a", stream, 0, &tensor)), "%s",
		  fsdp_error());
	actor_kill(&stage.producer);
	memset(&figures, 0xff, sizeof(figures));
	figures.sessions = 1;
	cr_assert(figures_await(stage.client, &figures));
	cr_expect(eq(int, fsdp_tensor_check(tensor), -EOWNERDEAD));
	cr_expect(not(stream_is_done(stream)));
	fsdp_free(tensor);
	cr_expect(eq(int, fsdp_close(stage.client), -ETIMEDOUT));
	stage.client = NULL;
}

Test(stream_events, an_event_reported_complete_before_a_death_is_valid)
{
	struct fsdp_tensor *tensor = NULL;
	uint8_t seen[STAGE_SIZE];

	open_gate();
	cr_assert(zero(int, actor_run(&stage.producer, produce)));
	cr_assert(zero(int, actor_run(&stage.producer, produce_finishes)));
	actor_kill(&stage.producer);
	cr_assert(zero(int, get_on("t/a", NULL, 0, &tensor)), "%s",
		  fsdp_error());
	cr_assert(zero(int, fsdp_copy_out(seen, tensor, 0, STAGE_SIZE)));
	cr_expect(is_filled(seen, STAGE_SIZE, STAGE_VALUE));
	fsdp_free(tensor);
}

static int release_late(void)
{
	struct fsdp_tensor *tensor = NULL;
	CUstream stream = stream_make(gpu_nth(0));

	must(get_on("t/own", stream, 0, &tensor) == 0);
	stream_hold(stream, &stage.shared->gate);
	return fsdp_release_on(tensor, stream);
}

Test(stream_events, a_dead_consumer_keeps_no_tensor)
{
	struct fsdp_tensor *tensor = alloc();

	cr_assert(zero(int, publish_on(tensor, "t/own", NULL)));
	cr_assert(zero(int, actor_run(&stage.producer, release_late)));
	fsdp_free(tensor);
	remove_name("t/own");
	cr_expect(eq(u64, n_slots(), 1));
	actor_kill(&stage.producer);
	cr_expect(await_slots(0));
}

/* --- the broker's death -------------------------------------------------- */

Test(stream_events, events_outlive_the_broker)
{
	struct fsdp_tensor *tensor = NULL;
	CUstream stream;
	uint8_t *seen;

	cr_assert(zero(int, actor_run(&stage.producer, produce)));
	stream = stream_make(gpu_nth(0));
	seen = pinned_memory(STAGE_SIZE);
	daemon_kill_broker(&stage.daemon);
	cr_assert(zero(int, get_on("t/a", stream, 0, &tensor)), "%s",
		  fsdp_error());
	stream_read(stream, seen, tensor, STAGE_SIZE);
	cr_expect(not(stream_is_done(stream)));
	open_gate();
	cr_assert(stream_finish(stream));
	cr_expect(is_filled(seen, STAGE_SIZE, STAGE_VALUE));
	fsdp_free(tensor);
	remove_name("t/a");
	daemon_kill_broker(&stage.daemon);
	cr_assert(zero(int, actor_run(&stage.producer, produce_finishes)));
	cr_assert(zero(int, actor_run(&stage.producer, produce_lets_go)));
	cr_expect(await_slots(0));
}

Test(stream_events, a_producer_that_dies_without_a_broker_taints_its_tensors)
{
	struct fsdp_tensor *tensor = NULL;
	pid_t broker = daemon_broker_pid(&stage.daemon);

	cr_assert(zero(int, actor_run(&stage.producer, produce)));
	kill(broker, SIGSTOP);
	actor_kill(&stage.producer);
	kill(broker, SIGKILL);
	cr_expect(eq(int, get_on("t/a", NULL, -1, &tensor), -EOWNERDEAD), "%s",
		  fsdp_error());
}

/* --- waiting processes look themselves ----------------------------------- */

static void *wait_for_next(void *data)
{
	struct fsdp_tensor *tensor = NULL;

	*(int *)data = get_on("t/next", NULL, -1, &tensor);
	if (*(int *)data == 0)
		fsdp_free(tensor);
	return NULL;
}

static void publish_next(struct fsdp_client *other)
{
	const struct fsdp_spec spec = {FSDP_U8, 1, {8}};
	struct fsdp_publication it = {.name = "t/next"};

	must(fsdp_alloc(other, &spec, 1, NULL, 0, &it.tensor) == 0);
	must(fsdp_publish(other, &it, 1) == 0);
	fsdp_free(it.tensor);
}

/* Check that no slot is left while a thread waits for the next tensor. This
 * uses another connection, because a call on the first one would look. */
static void expect_let_go(void)
{
	struct fsdp_connect_options options = {.path = stage.shared->socket};
	struct fsdp_client *other;
	struct figures none;
	pthread_t thread;
	int r = 1;

	must(fsdp_connect(&options, &other) == 0);
	must(pthread_create(&thread, NULL, wait_for_next, &r) == 0);
	open_gate();
	memset(&none, 0xff, sizeof(none));
	none.slots = 0;
	cr_expect(figures_await(other, &none));
	publish_next(other);
	pthread_join(thread, NULL);
	cr_expect(zero(int, r));
	fsdp_close(other);
}

Test(stream_events, a_call_that_waits_releases_tensors_read_meanwhile)
{
	struct fsdp_tensor *tensor = alloc();
	CUstream stream = stream_make(gpu_nth(0));

	stream_hold(stream, &stage.shared->gate);
	cr_assert(zero(int, fsdp_release_on(tensor, stream)));
	fsdp_free(tensor);
	expect_let_go();
}

Test(stream_events, a_call_that_waits_reports_tensors_written_meanwhile)
{
	struct fsdp_tensor *tensor = alloc();
	CUstream stream = stream_make(gpu_nth(0));

	stream_hold(stream, &stage.shared->gate);
	cr_assert(zero(int, publish_on(tensor, NULL, stream)));
	fsdp_free(tensor);
	expect_let_go();
}

Test(stream_events, a_wait_in_slices_ends_in_time_and_reports_its_duration)
{
	struct fsdp_tensor *tensor = alloc(), *next = NULL;
	CUstream stream = stream_make(gpu_nth(0));

	need_fake("events must order instead of timelines");
	stream_hold(stream, &stage.shared->gate);
	cr_assert(zero(int, fsdp_release_on(tensor, stream)));
	cr_expect(eq(int, get_on("t/next", NULL, 70, &next), -ETIMEDOUT));
	cr_expect(ne(ptr, strstr(fsdp_error(), "t/next"), NULL), "%s",
		  fsdp_error());
	cr_expect(eq(ptr, (void *)strstr(fsdp_error(), "after "),
		     (void *)fsdp_error()),
		  "%s", fsdp_error());
	cr_expect(eq(int, get_on("t/next", NULL, 0, &next), -ENOENT));
	fsdp_free(tensor);
	open_gate();
}

/* The client waits 1 ms for a broker that is away. That must not shorten the
 * time-out of a get. */
Test(stream_events, a_client_that_does_not_reconnect_waits_in_slices)
{
	struct fsdp_client *hurried;
	CUstream stream = stream_make(gpu_nth(0));
	struct fsdp_tensor *tensor, *next = NULL;
	int took_ms = 0;

	need_fake("events must order instead of timelines");
	hurried = connect_impatiently(stage.shared->socket, 1);
	fsdp_close(stage.client);
	stage.client = hurried;
	tensor = alloc();
	stream_hold(stream, &stage.shared->gate);
	cr_assert(zero(int, fsdp_release_on(tensor, stream)));
	cr_expect(eq(int, get_on("t/next", NULL, 70, &next), -ETIMEDOUT));
	cr_expect(eq(int, sscanf(fsdp_error(), "after %d ms", &took_ms), 1));
	cr_expect(ge(int, took_ms, 70), "%s", fsdp_error());
	fsdp_free(tensor);
	open_gate();
	cr_expect(stream_finish(stream));
}

/* --- room ---------------------------------------------------------------- */

static void set_up_small(void)
{
	setenv("FAKECUDA_MEM_MB", "64", 1);
	set_up();
}

TestSuite(stream_events_room, .init = set_up_small, .fini = stage_close,
	  .timeout = 300);

/* Allocate more than half of the device. */
static struct fsdp_tensor *alloc_much(int32_t timeout_ms)
{
	const struct fsdp_spec spec = {FSDP_U8, 1, {36 << 20}};
	struct fsdp_device gpu = gpu_name(0);
	struct fsdp_tensor *tensor = NULL;

	return fsdp_alloc_on(stage.client, &gpu, &spec, 1, NULL, timeout_ms,
			     &tensor) == 0
		       ? tensor
		       : NULL;
}

static void *wait_for_room(void *unused)
{
	(void)unused;
	return alloc_much(-1);
}

Test(stream_events_room,
     an_allocation_that_waits_releases_memory_of_its_own_client)
{
	struct fsdp_tensor *tensor = alloc_much(0);
	CUstream stream = stream_make(gpu_nth(0));
	pthread_t thread;
	void *next;

	need_fake("events must order instead of timelines");
	cr_assert(ne(ptr, (void *)tensor, NULL), "%s", fsdp_error());
	stream_hold(stream, &stage.shared->gate);
	cr_assert(zero(int, publish_on(tensor, NULL, stream)));
	cr_assert(zero(int, fsdp_release_on(tensor, stream)));
	fsdp_free(tensor);
	cr_expect(eq(ptr, (void *)alloc_much(0), NULL));
	must(pthread_create(&thread, NULL, wait_for_room, NULL) == 0);
	open_gate();
	pthread_join(thread, &next);
	cr_assert(ne(ptr, next, NULL));
	fsdp_free(next);
}
