/*
 * Kills all kinds of processes that use tensors on a device: the broker at
 * every failpoint that it passes, producers and consumers at every failpoint of
 * theirs, and all of them at random moments. A consumer reads either complete
 * contents or a tensor that is marked as tainted. At the end nothing remains.
 *
 * The test process loads the driver only after its last fork(), because a
 * driver does not survive one.
 */
#include "tests/lib/chaos.h"
#include "tests/lib/check.h"
#include "tests/lib/device.h"
#include "tests/lib/gpu.h"
#include "tests/lib/patience.h"
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SIZE         4096
#define MAX_PASSAGES 2 /* tried at each failpoint, with one broker each */
#define NAME         "work/a"
#define BUNDLE       "work/model/"

static const struct fsdp_spec BYTES = {FSDP_U8, 1, {SIZE}};
static const char CONFIG[] = "[memory]\nchunk_min = 2M\nwarm_ms = 10ms\n";

static struct chaos chaos;

/* Children count in this shared memory. */
static struct talk {
	_Atomic uint64_t n_read, n_tainted; /* by consumers */
	char plan[48], points[48];          /* of the children */
} * talk;

/* --- work ---------------------------------------------------------------- */

/* Each process has its own. */
struct worker {
	struct fsdp_client *client;
	struct fsdp_device gpu;
	CUstream stream;
	uint8_t *pinned;
};

static struct worker worker_open(void)
{
	return (struct worker){
		.client = chaos_connect(&chaos),
		.gpu = gpu_name(0),
		.stream = stream_make(gpu_nth(0)),
		.pinned = pinned_memory(SIZE),
	};
}

/* Write a tensor on a stream, publish it, and release it before the stream is
 * done. */
static void produce_one(struct worker *worker, uint8_t value)
{
	struct fsdp_publication it = {
		.name = NAME, .flags = FSDP_REPLACE, .stream = worker->stream};

	must(fsdp_alloc_on(worker->client, &worker->gpu, &BYTES, 1, NULL, -1,
			   &it.tensor) == 0);
	/* The two fills let a consumer detect contents that are only partly
	 * written. */
	stream_fill(worker->stream, it.tensor, 0);
	stream_fill(worker->stream, it.tensor, value);
	must(fsdp_publish(worker->client, &it, 1) == 0);
	fsdp_free(it.tensor);
}

/* Check that all bytes have the same value, and return it. The value 0 means
 * that the tensor is only partly written. */
static uint8_t check_read(const struct worker *worker)
{
	must(is_filled(worker->pinned, SIZE, worker->pinned[0]));
	must(worker->pinned[0] > 0);
	return worker->pinned[0];
}

static void consume_one(struct worker *worker)
{
	const struct fsdp_get_options options = {.timeout_ms = -1,
						 .stream = worker->stream};
	struct fsdp_tensor *tensor = NULL;
	const char *name = NAME;
	int r = fsdp_get(worker->client, &name, 1, &options, &tensor);

	if (r == 0) {
		stream_read(worker->stream, worker->pinned, tensor, SIZE);
		must(stream_finish(worker->stream));
		r = fsdp_tensor_check(tensor);
		must(fsdp_release_on(tensor, worker->stream) == 0);
		fsdp_free(tensor);
	}
	must(r == 0 || r == -EOWNERDEAD);
	if (r == 0)
		(void)check_read(worker);
	atomic_fetch_add(r == 0 ? &talk->n_read : &talk->n_tainted, 1);
}

static int read_member(size_t i, void *into, size_t size, void *data)
{
	(void)data;
	memset(into, (int)i + 1, size);
	return 0;
}

static void load(struct worker *worker)
{
	const struct fsdp_bundle_options options = {
		.access = {.gid = FSDP_GID_DEFAULT},
		.flags = FSDP_REPLACE,
		.device = worker->gpu};
	static const char *const names[] = {BUNDLE "w", BUNDLE "b"};
	struct fsdp_tensor *members[2], **all = NULL;
	struct fsdp_spec specs[2] = {BYTES, BYTES};
	struct fsdp_bundle *bundle = NULL;
	size_t n = 0;

	must(fsdp_bundle_begin(worker->client, BUNDLE, &options, &bundle) == 0);
	must(fsdp_bundle_alloc(bundle, names, specs, 2, members) == 0);
	must(fsdp_fill(members, 2, read_member, NULL) == 0);
	must(fsdp_bundle_commit(bundle, NULL) == 0);
	must(fsdp_bundle_get(worker->client, BUNDLE, NULL, &all, &n) == 0);
	must(n == 2);
	for (size_t i = 0; i < n; i++) {
		must(fsdp_copy_out(worker->pinned, all[i], 0, SIZE) == 0);
		must(check_read(worker) == i + 1);
		fsdp_free(all[i]);
		fsdp_free(members[i]);
	}
	free(all);
}

static void remove_name(struct fsdp_client *client, const char *name)
{
	int r = fsdp_remove(client, &name, 1);

	must(r == 0 || r == -ENOENT);
}

/* --- accounting ---------------------------------------------------------- */

static int keep_value(const char *name, uint64_t value, void *data)
{
	uint64_t *left = data;

	if (strcmp(name, "timelines") == 0 ||
	    strcmp(name, "slots_fenced") == 0 ||
	    strcmp(name, "device_bytes_live") == 0)
		*left += value;
	return 0;
}

static uint64_t count_left(struct fsdp_client *client)
{
	uint64_t left = 0;

	must(fsdp_status(client, keep_value, &left, NULL) == 0);
	return left;
}

/* The broker frees timelines and device memory shortly after the session or the
 * chunk to which they belong. */
static bool is_left_none(struct fsdp_client *client)
{
	for (int i = 0; i < PATIENCE_MS; i++) {
		if (count_left(client) == 0)
			return true;
		nap_ms(1);
	}
	return false;
}

/* Returns whether nothing is left on any device. The only session is the
 * caller's, which has not used devices. */
static bool is_empty(struct fsdp_client *client)
{
	struct figures none;

	memset(&none, 0xff, sizeof(none));
	none.sessions = 1;
	none.slots = none.blocks = none.bundles = none.chunks = 0;
	return figures_await(client, &none) && is_left_none(client);
}

/* --- the broker dies ----------------------------------------------------- */

static void set_up(void)
{
	gpu_open();
	chaos_start(&chaos, CONFIG);
	talk = shared_memory(sizeof(*talk));
	snprintf(talk->plan, sizeof(talk->plan), "%s/mine", chaos.dir);
	snprintf(talk->points, sizeof(talk->points), "%s/passed", chaos.dir);
}

static void tear_down(void)
{
	plan_drop(talk->plan);
	plan_drop(chaos.plan);
	(void)unlink(talk->points);
	chaos_stop(&chaos);
	gpu_close();
}

TestSuite(chaos_device, .init = set_up, .fini = tear_down, .timeout = 300);

/* Use each operation once, in a separate process. */
static void use_device(void *unused)
{
	struct worker mine = worker_open(), other = worker_open();

	(void)unused;
	for (uint8_t value = 1; value <= 3; value++) {
		produce_one(&mine, value);
		consume_one(&other);
		must(check_read(&other) == value);
	}
	load(&mine);
	remove_name(mine.client, NAME);
	remove_name(mine.client, BUNDLE);
	fsdp_close(other.client);
	fsdp_close(mine.client);
}

/* A supervisor gives up a broker that dies often, so there is a new one for
 * each death. Returns false if the failpoint was passed less often than `n`
 * times. */
static bool broker_dies_at(const char *point, unsigned int n)
{
	struct fsdp_client *watcher;
	bool is_done;

	fprintf(stderr, "broker killed at passage %u of %s\n", n, point);
	chaos_stop(&chaos);
	chaos_start(&chaos, CONFIG);
	watcher = chaos_connect(&chaos);
	plan_death(chaos.plan, point, n);
	cr_assert(zero(int, child_wait(child_start(use_device, NULL))));
	is_done = plan_is_done(chaos.plan);
	plan_drop(chaos.plan);
	cr_assert(is_empty(watcher));
	fsdp_close(watcher);
	return is_done;
}

Test(chaos_device, the_broker_dies_at_every_failpoint)
{
	struct passages passages;
	unsigned int n_deaths = 0;

	if (!chaos_has_points())
		cr_skip_test("built without FSDP_TEST_POINTS");
	passages_forget(chaos.points);
	cr_assert(zero(int, child_wait(child_start(use_device, NULL))));
	passages_read(chaos.points, &passages);
	for (size_t i = 0; i < passages.n; i++) {
		const struct passage *it = &passages.list[i];

		for (unsigned int n = 1; n <= it->n && n <= MAX_PASSAGES; n++)
			n_deaths += broker_dies_at(it->name, n);
	}
	cr_assert(ge(uint, n_deaths, 10));
}

/* --- clients die --------------------------------------------------------- */

static void produce_some(void *unused)
{
	struct worker worker;

	(void)unused;
	setenv("FSDP_KILL_PLAN", talk->plan, 1);
	setenv("FSDP_POINTS_LOG", talk->points, 1);
	worker = worker_open();
	for (uint8_t value = 1; value <= 3; value++)
		produce_one(&worker, value);
	load(&worker);
	fsdp_close(worker.client);
}

static void consume_some(void *unused)
{
	struct worker worker;

	(void)unused;
	setenv("FSDP_KILL_PLAN", talk->plan, 1);
	setenv("FSDP_POINTS_LOG", talk->points, 1);
	worker = worker_open();
	for (int i = 0; i < 3; i++)
		consume_one(&worker);
	fsdp_close(worker.client);
}

/* Check that what is published is complete or tainted. */
static void look(void *unused)
{
	struct worker worker = worker_open();
	struct fsdp_tensor *tensor = NULL;
	const char *name = NAME;
	int r = fsdp_get(worker.client, &name, 1, NULL, &tensor);

	(void)unused;
	must(r == 0 || r == -EOWNERDEAD || r == -ENOENT);
	if (r == 0) {
		must(fsdp_copy_out(worker.pinned, tensor, 0, SIZE) == 0);
		(void)check_read(&worker);
		fsdp_free(tensor);
	}
	fsdp_close(worker.client);
}

static void put_one(void *unused)
{
	struct worker worker = worker_open();

	(void)unused;
	produce_one(&worker, 9);
	fsdp_close(worker.client);
}

static void run(child_fn *fn)
{
	cr_assert(zero(int, child_wait(child_start(fn, NULL))));
}

/* Wait until the broker has noticed the death and only the watcher's session is
 * left. */
static void await_death(struct fsdp_client *watcher)
{
	struct figures figures;

	memset(&figures, 0xff, sizeof(figures));
	figures.sessions = 1;
	cr_assert(figures_await(watcher, &figures));
}

static bool dies_at(struct fsdp_client *watcher, child_fn *fn,
		    const char *point, unsigned int n)
{
	int end;

	fprintf(stderr, "client killed at passage %u of %s\n", n, point);
	run(put_one);
	plan_death(talk->plan, point, n);
	end = child_wait(child_start(fn, NULL));
	cr_assert(end == SIGKILL || end == 0);
	plan_drop(talk->plan);
	await_death(watcher);
	run(look);
	remove_name(watcher, NAME);
	remove_name(watcher, BUNDLE);
	cr_assert(is_empty(watcher));
	return end == SIGKILL;
}

static void die_everywhere(child_fn *fn)
{
	struct fsdp_client *watcher = chaos_connect(&chaos);
	unsigned int n_deaths = 0;
	struct passages passages;

	if (!chaos_has_points())
		cr_skip_test("built without FSDP_TEST_POINTS");
	run(put_one);
	run(fn);
	passages_read(talk->points, &passages);
	for (size_t i = 0; i < passages.n; i++) {
		const struct passage *it = &passages.list[i];

		for (unsigned int n = 1; n <= it->n; n++)
			n_deaths += dies_at(watcher, fn, it->name, n);
	}
	cr_assert(ge(uint, n_deaths, 4));
	fsdp_close(watcher);
}

Test(chaos_device, a_producer_dies_at_every_failpoint)
{
	die_everywhere(produce_some);
}

Test(chaos_device, a_consumer_dies_at_every_failpoint)
{
	die_everywhere(consume_some);
}

/* --- deaths of all processes at any moment ------------------------------- */

static void produce_for_ever(void *unused)
{
	struct worker worker = worker_open();

	(void)unused;
	for (uint8_t value = 1;; value = value == 255 ? 1 : value + 1)
		produce_one(&worker, value);
}

static void consume_for_ever(void *unused)
{
	struct worker worker = worker_open();

	(void)unused;
	for (;;)
		consume_one(&worker);
}

static void await_reads(uint64_t n)
{
	while (atomic_load(&talk->n_read) < n)
		nap_ms(1);
}

/* A process that is killed is replaced, and one that survives continues. The
 * supervisor gives up a broker that dies five times. */
#define ROUNDS        32
#define BROKER_ROUNDS 8 /* every eighth victim is the broker */

Test(chaos_device, any_process_dies_at_any_moment)
{
	struct fsdp_client *watcher = chaos_connect(&chaos);
	pid_t producer = child_start(produce_for_ever, NULL);
	pid_t consumer = child_start(consume_for_ever, NULL);
	uint64_t n_read = 0;

	for (int round = 1; round <= ROUNDS; round++) {
		await_reads(n_read + 3);
		if (round % BROKER_ROUNDS == 0) {
			daemon_kill_broker(&chaos.daemon);
		} else if (round % 2 == 0) {
			cr_assert(eq(int, child_kill(producer), SIGKILL));
			producer = child_start(produce_for_ever, NULL);
		} else {
			cr_assert(eq(int, child_kill(consumer), SIGKILL));
			consumer = child_start(consume_for_ever, NULL);
		}
		n_read = atomic_load(&talk->n_read);
	}
	await_reads(n_read + 3);
	cr_assert(eq(int, child_kill(consumer), SIGKILL));
	cr_assert(eq(int, child_kill(producer), SIGKILL));
	await_death(watcher);
	run(look);
	remove_name(watcher, NAME);
	cr_assert(is_empty(watcher));
	fsdp_close(watcher);
}
