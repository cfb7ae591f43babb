/*
 * Interrupts a new broker that takes over. After one interruption nothing is
 * lost; after two, the broker starts empty and reports that. Also kills the
 * process that keeps the memory.
 */
#include "tests/lib/chaos.h"
#include "tests/lib/check.h"
#include "tests/lib/impatient.h"
#include "tests/lib/memory.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#define MAX_PASSAGES 3 /* tried passages of one failpoint */

static const struct fsdp_spec PAGE = {FSDP_U64, 1, {512}};

static struct chaos chaos;
static struct fsdp_client *client, *other;
static struct fsdp_tensor *kept, *old;
static struct fsdp_bundle *staged;
static struct fsdp_ticket ticket;

static void put_bundle(const char *name, const char *member, bool is_committed)
{
	struct fsdp_bundle_options options = {.access = {FSDP_GID_DEFAULT, 0},
					      .device = memory_device()};
	struct fsdp_tensor *tensor;

	must(fsdp_bundle_begin(client, name, &options, &staged) == 0);
	must(fsdp_bundle_alloc(staged, &member, &PAGE, 1, &tensor) == 0);
	pattern_fill(tensor, pattern_tag(member, 1));
	if (!is_committed)
		return;
	must(fsdp_bundle_commit(staged, NULL) == 0);
	fsdp_free(tensor);
}

/* Make one object of every kind that a broker takes over. */
static void fill(void)
{
	struct fsdp_publication evictable = {
		.tensor = pattern_make(client, pattern_tag("kept/e", 1)),
		.name = "kept/e",
		.flags = FSDP_EVICTABLE,
		.ttl_ms = 1000000};
	const char *name = "kept/a";

	pattern_put(client, "kept/a", 1);
	must(fsdp_get(other, &name, 1, NULL, &old) == 0);
	pattern_put(client, "kept/a", 2);
	must(fsdp_get(other, &name, 1, NULL, &kept) == 0);
	must(fsdp_publish(client, &evictable, 1) == 0);
	must(fsdp_ticket_make(evictable.tensor, 2, 1000000, &ticket) == 0);
	put_bundle("kept/model/", "kept/model/w", true);
	put_bundle("kept/next/", "kept/next/w", false);
	pattern_make(other, 1); /* not published, so it can still be written */
}

static void set_up(void)
{
	chaos_start(&chaos, NULL);
	client = chaos_connect(&chaos);
	other = chaos_connect(&chaos);
	fill();
}

static void tear_down(void)
{
	fsdp_close(client);
	fsdp_close(other);
	chaos_stop(&chaos);
}

TestSuite(restart, .init = set_up, .fini = tear_down, .timeout = 300);

static void need_points(void)
{
	if (!chaos_has_points())
		cr_skip_test("built without FSDP_TEST_POINTS");
}

static void check_kept(void)
{
	cr_assert(pattern_is(old, pattern_tag("kept/a", 1)));
	cr_assert(pattern_is(kept, pattern_tag("kept/a", 2)));
}

/* Check that everything still exists and works. This uses up what it checks. */
static void check_all(void)
{
	struct fsdp_tensor *redeemed = NULL;

	check_kept();
	cr_assert(pattern_is_published(client, "kept/a", 2));
	cr_assert(pattern_is_published(other, "kept/e", 1));
	cr_assert(pattern_is_published(other, "kept/model/w", 1));
	must(fsdp_bundle_commit(staged, NULL) == 0);
	cr_assert(pattern_is_published(other, "kept/next/w", 1));
	must(fsdp_ticket_redeem(other, &ticket, 1, &redeemed) == 0);
	cr_assert(pattern_is(redeemed, pattern_tag("kept/e", 1)));
	must(fsdp_release_sync(other, &old, 1) == 0);
	cr_assert(eq(int, fsdp_acquire(old), -ESTALE));
}

/* --- once ---------------------------------------------------------------- */

static void read_figures(struct figures *ret)
{
	must(fsdp_ping(client) == 0);
	must(fsdp_ping(other) == 0);
	figures_read(client, ret);
}

/* Kill the broker, and the next one at that failpoint. Returns false if the
 * next one did not die. */
static bool die_twice(const char *point, unsigned int n)
{
	struct figures before, now;
	bool is_done;

	fprintf(stderr, "killed at passage %u of %s\n", n, point);
	tear_down();
	set_up();
	read_figures(&before);
	plan_death(chaos.plan, point, n);
	daemon_kill_broker(&chaos.daemon);
	read_figures(&now);
	is_done = plan_is_done(chaos.plan);
	plan_drop(chaos.plan);
	/* The broker that died counts as an epoch only if it had taken over far
	 * enough. */
	cr_assert(ge(u64, now.epoch, before.epoch + 1));
	cr_assert(le(u64, now.epoch, before.epoch + 1 + is_done));
	cr_assert(figures_await(client, &before));
	check_all();
	return is_done;
}

Test(restart, is_repeated_after_an_interruption_at_any_failpoint)
{
	struct passages passages;
	struct figures now;
	unsigned int n_deaths = 0;

	need_points();
	passages_forget(chaos.points);
	daemon_kill_broker(&chaos.daemon);
	read_figures(&now);
	passages_read(chaos.points, &passages);
	for (size_t i = 0; i < passages.n; i++) {
		const struct passage *it = &passages.list[i];

		for (unsigned int n = 1; n <= it->n && n <= MAX_PASSAGES; n++)
			n_deaths += die_twice(it->name, n);
	}
	cr_assert(ge(uint, n_deaths, 15));
}

/* --- what was under way -------------------------------------------------- */

struct waiting {
	struct fsdp_client *client;
	struct fsdp_tensor *tensor;
	int r;
};

static void *alloc_patiently(void *data)
{
	struct waiting *it = data;

	it->r = memory_alloc(it->client, &PAGE, 1, NULL, -1, &it->tensor);
	return NULL;
}

static int add_waiting(const struct fsdp_peer *peer, void *data)
{
	*(uint32_t *)data += peer->n_waiting;
	return 0;
}

static void await_waiting(void)
{
	uint32_t n = 0;

	while (n == 0)
		must(fsdp_clients(client, add_waiting, &n) == 0);
}

Test(restart, leaves_an_allocation_waiting_for_memory)
{
	struct fsdp_connect_options options = {
		.path = daemon_socket(&chaos.daemon), .budget = 4096};
	struct waiting it = {.r = 1};
	struct fsdp_tensor *first;
	pthread_t thread;

	must(fsdp_connect(&options, &it.client) == 0);
	first = pattern_make(it.client, 1);
	pthread_create(&thread, NULL, alloc_patiently, &it);
	await_waiting();
	daemon_kill_broker(&chaos.daemon);
	await_waiting();
	fsdp_free(first);
	pthread_join(thread, NULL);
	cr_assert(eq(int, it.r, 0));
	cr_assert(eq(i64, count_slot_holds(it.client, it.tensor), 1));
	fsdp_close(it.client);
}

#define N_THREADS 8
#define N_ROUNDS  60

static void *put_and_get(void *data)
{
	char name[] = "kept/t0";

	name[6] = (char)('0' + *(int *)data);
	for (uint64_t round = 1; round <= N_ROUNDS; round++) {
		pattern_put(client, name, round);
		must(pattern_is_published(client, name, round));
	}
	return NULL;
}

Test(restart, answers_each_pending_request_of_many_threads_once)
{
	struct figures before, now;
	pthread_t threads[N_THREADS];
	int numbers[N_THREADS];

	need_points();
	read_figures(&before);
	plan_write(chaos.plan, "verb.publish.done 30\npeer.send 100\n"
			       "verb.alloc.committed 50\n");
	for (int i = 0; i < N_THREADS; i++) {
		numbers[i] = i;
		pthread_create(&threads[i], NULL, put_and_get, &numbers[i]);
	}
	for (int i = 0; i < N_THREADS; i++)
		pthread_join(threads[i], NULL);
	cr_assert(plan_is_done(chaos.plan));
	read_figures(&now);
	cr_assert(eq(u64, now.epoch, before.epoch + 3));
	cr_assert(eq(u64, now.slots, before.slots + N_THREADS));
	cr_assert(eq(u64, now.slots_limbo, before.slots_limbo));
	for (int i = 0; i < N_THREADS; i++) {
		char name[] = "kept/t0";

		name[6] = (char)('0' + i);
		cr_assert(eq(i64, count_holds(client, name), 0));
	}
	check_all();
}

/* --- undoing ------------------------------------------------------------- */

static struct fsdp_publication half_done(void)
{
	return (struct fsdp_publication){
		.tensor = pattern_make(client, pattern_tag("kept/a", 3)),
		.name = "kept/a",
		.flags = FSDP_REPLACE};
}

static bool die_undoing(unsigned int n)
{
	struct fsdp_publication it;
	bool is_done;
	char plan[96];

	tear_down();
	set_up();
	it = half_done();
	snprintf(plan, sizeof(plan), "verb.publish.done 1\ncatalog.undo %u\n",
		 n);
	plan_write(chaos.plan, plan);
	must(fsdp_publish(client, &it, 1) == 0);
	cr_assert(eq(u64, it.version, 3));
	is_done = plan_is_done(chaos.plan);
	plan_drop(chaos.plan);
	must(fsdp_ping(other) == 0);
	cr_assert(eq(i64, count_holds(client, "kept/a"), 1));
	cr_assert(pattern_is_published(other, "kept/a", 3));
	check_kept();
	return is_done;
}

Test(restart, undoes_a_partial_request_again_if_undoing_was_interrupted)
{
	unsigned int n = 1;

	need_points();
	while (die_undoing(n))
		n += n < 4 ? 1 : n / 2;
	cr_assert(ge(uint, n, 5));
}

/* --- a shortage ---------------------------------------------------------- */

/* The new connection may fail for lack of memory, too. */
static void ping_at_last(struct fsdp_client *asking)
{
	int r;

	while ((r = fsdp_ping(asking)) < 0)
		cr_assert(is_shortage(r), "%s", fsdp_error());
}

Test(restart, that_lacks_memory_is_retried_and_loses_no_tensor)
{
	unsigned int n_failures = 0;

	need_points();
	for (unsigned int n = 1; n <= 4; n++) {
		plan_failure(chaos.failures, "memfd.map", n, ENOMEM);
		daemon_kill_broker(&chaos.daemon);
		ping_at_last(client);
		n_failures += plan_is_done(chaos.failures);
		plan_drop(chaos.failures);
		ping_at_last(other);
	}
	cr_expect(ge(uint, n_failures, 2));
	check_all();
}

/* --- twice --------------------------------------------------------------- */

static int find_note(const char *name, uint64_t value, void *data)
{
	(void)name;
	(void)value;
	(void)data;
	return 0;
}

static bool status_says(struct fsdp_client *asking, const char *words)
{
	char *note = NULL;
	bool is_said;

	must(fsdp_status(asking, find_note, NULL, &note) == 0);
	is_said = strstr(note, words) != NULL;
	free(note);
	return is_said;
}

/* Check that the memory is readable, and that every call reports the loss. */
static void check_lost(void)
{
	struct fsdp_tensor *none = NULL;
	const char *name = "kept/a";

	check_kept();
	cr_assert(eq(int, fsdp_ping(client), -ESTALE));
	cr_assert(eq(int, fsdp_ping(other), -ESTALE));
	cr_assert(
		eq(int, fsdp_ticket_redeem(other, &ticket, 1, &none), -ESTALE));
	cr_assert(eq(int, fsdp_remove(client, &name, 1), -ESTALE));
	check_kept();
}

static void check_empty(void)
{
	struct fsdp_client *fresh = chaos_connect(&chaos);
	struct figures now;

	figures_read(fresh, &now);
	cr_assert(eq(u64, now.slots, 0));
	cr_assert(eq(u64, now.bytes_live, 0));
	cr_assert(eq(u64, now.sessions, 1));
	cr_assert(status_says(fresh, "started without the memory"));
	pattern_put(fresh, "kept/a", 1);
	cr_assert(pattern_is_published(fresh, "kept/a", 1));
	fsdp_close(fresh);
}

Test(restart, that_fails_a_second_time_starts_empty_and_reports_it)
{
	static const char *const points[] = {
		"catalog.attempt", "catalog.undone", "adopt.begin",
		"adopt.pools",     "adopt.slots",
	};

	need_points();
	for (size_t i = 0; i < sizeof(points) / sizeof(points[0]); i++) {
		char plan[96];

		fprintf(stderr, "killed twice at %s\n", points[i]);
		snprintf(plan, sizeof(plan), "%s 1\n%s 1\n", points[i],
			 points[i]);
		plan_write(chaos.plan, plan);
		daemon_kill_broker(&chaos.daemon);
		check_lost();
		cr_assert(plan_is_done(chaos.plan));
		check_empty();
		tear_down();
		set_up();
	}
}

Test(restart, that_fails_twice_to_undo_a_request_starts_empty)
{
	struct fsdp_publication it = half_done();

	need_points();
	plan_write(chaos.plan,
		   "verb.publish.done 1\ncatalog.undo 2\ncatalog.undo 1\n");
	cr_assert(eq(int, fsdp_publish(client, &it, 1), -ESTALE));
	check_lost();
	check_empty();
}

/* Only consecutive failures count. */
Test(restart, that_succeeds_resets_the_count_of_failures)
{
	need_points();
	for (int i = 0; i < 2; i++) {
		plan_death(chaos.plan, "adopt.slots", 1);
		daemon_kill_broker(&chaos.daemon);
		must(fsdp_ping(client) == 0);
		cr_assert(plan_is_done(chaos.plan));
	}
	must(fsdp_ping(other) == 0);
	check_all();
}

/* --- without a keeper ---------------------------------------------------- */

/* Let the process be killed when the test ends. A child of the test does that
 * when the test's end of the pipe is closed, for whatever reason. */
static void guard_process(pid_t pid)
{
	int ends[2], pidfd = pidfd_open(pid, 0);
	char none;

	must(pidfd >= 0 && pipe(ends) == 0);
	if (fork() == 0) {
		close(ends[1]);
		(void)!read(ends[0], &none, 1);
		(void)pidfd_send_signal(pidfd, SIGKILL, NULL, 0);
		_exit(0);
	}
	close(ends[0]);
	close(pidfd);
}

/* Send SIGKILL to the supervisor. The broker becomes our child. */
static void kill_supervisor(void)
{
	pid_t broker = daemon_broker_pid(&chaos.daemon);

	guard_process(broker);
	must(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
	must(child_kill(chaos.daemon.pid) == SIGKILL);
	chaos.daemon.pid = broker;
	chaos.daemon.is_supervised = false;
}

Test(restart, is_impossible_without_the_supervisor_but_the_broker_continues)
{
	const struct fsdp_spec large = {FSDP_U8, 1, {8 << 20}};
	struct fsdp_tensor *tensor = NULL;
	struct figures now;

	figures_read(client, &now);
	cr_assert(eq(u64, now.supervised, 1));
	cr_assert(not(status_says(client, "will lose all tensors")));
	kill_supervisor();
	while (now.supervised)
		figures_read(client, &now);
	cr_assert(status_says(client, "will lose all tensors"));
	cr_assert(eq(u64, now.epoch, 1));
	/* This tensor needs a new chunk, which no supervisor keeps any more. */
	must(memory_alloc(client, &large, 1, NULL, 0, &tensor) == 0);
	check_all();
}

Test(restart, does_not_happen_without_a_supervisor_and_no_call_hangs)
{
	struct fsdp_client *impatient =
		connect_impatiently(daemon_socket(&chaos.daemon), 100);

	kill_supervisor();
	must(child_kill(chaos.daemon.pid) == SIGKILL);
	chaos.daemon.pid = 0;
	cr_assert(lt(int, fsdp_ping(impatient), 0));
	check_kept();
	cr_assert(eq(int, fsdp_release(old), 0));
	fsdp_close(impatient);
	/* A goodbye would wait for the clients' time-out of 10 s. */
	client = other = NULL;
}
