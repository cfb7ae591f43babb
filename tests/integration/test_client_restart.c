/*
 * Tests libfsdp when its broker dies, also in the middle of a request.
 */
#include "tests/lib/chance.h"
#include "tests/lib/chaos.h"
#include "tests/lib/check.h"
#include "tests/lib/client.h"
#include "tests/lib/impatient.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

CHECKED_SUITE(client_restart, client_setup_supervised, client_teardown,
	      .timeout = 300);
CHECKED_SUITE(client_lost, client_setup, client_teardown, .timeout = 300);

Test(client_restart, holds_names_and_a_waiting_get_survive_the_broker)
{
	struct waiting waiting = {client, "test/late", 0, 1};
	struct fsdp_tensor *held = NULL, *again = NULL;
	pthread_t thread;

	put(client, "test/a", 1);
	cr_assert(eq(int, get(client, "test/a", 0, &held), 0));
	pthread_create(&thread, NULL, wait_for_name, &waiting);
	wait_until_parked(1);
	daemon_kill_broker(&daemon_);
	cr_assert(eq(flt, first_of(held), 1));
	cr_assert(eq(int, fsdp_release(held), 0));
	cr_assert(eq(int, fsdp_acquire(held), 0));
	put(client, "test/a", 2);
	cr_assert(eq(int, count_limbo(client), 1));
	cr_assert(eq(flt, first_of(held), 1));
	cr_assert(eq(int, get(client, "test/a", 0, &again), 0));
	cr_assert(eq(flt, first_of(again), 2));
	put(client, "test/late", 3);
	pthread_join(thread, NULL);
	cr_assert(eq(int, waiting.r, 0));
	cr_assert(eq(flt, waiting.value, 3));
	cr_assert(eq(int, fsdp_release_sync(client, &held, 1), 0), "%s",
		  fsdp_error());
	cr_assert(eq(int, count_limbo(client), 0));
}

static int get_once(struct fsdp_client *reader, const char *name)
{
	struct fsdp_tensor *got = NULL;
	int r = get(reader, name, 0, &got);

	fsdp_free(got);
	return r;
}

Test(client_restart, a_reader_is_listed_as_not_connected_until_it_reconnects)
{
	struct fsdp_tensor *held = NULL;

	put(client, "test/a", 1);
	cr_assert(eq(int, get(client, "test/a", 0, &held), 0));
	daemon_kill_broker(&daemon_);
	cr_expect(daemon_shows(&daemon_, "who test/a",
			       " reading, not connected\n"));
	cr_assert(eq(int, fsdp_ping(client), 0));
	cr_expect(daemon_shows(&daemon_, "who test/a", " reading\n"));
	fsdp_free(held);
}

Test(client_restart, gets_of_a_cached_name_reconnect_to_the_next_broker)
{
	struct fsdp_tensor *held = NULL;

	put(client, "test/a", 1);
	cr_assert(eq(int, get(client, "test/a", 0, &held), 0));
	daemon_kill_broker(&daemon_);
	while (!daemon_shows(&daemon_, "who test/a", " reading\n"))
		cr_assert(eq(int, get_once(client, "test/a"), 0), "%s",
			  fsdp_error());
	fsdp_free(held);
}

/* Return how much memory the broker's catalog has. */
static uint64_t catalog_memory(void)
{
	pid_t pid = daemon_broker_pid(&daemon_);
	char path[64], name[64];
	struct stat status;

	for (int fd = 0; fd < 256; fd++) {
		ssize_t n;

		snprintf(path, sizeof(path), "/proc/%d/fd/%d", pid, fd);
		n = readlink(path, name, sizeof(name) - 1);
		name[n > 0 ? n : 0] = '\0';
		if (strncmp(name, "/memfd:fsdpd-catalog", 20) != 0)
			continue;
		cr_assert(zero(int, stat(path, &status)));
		return (uint64_t)status.st_blocks * 512;
	}
	cr_assert_fail("the broker has no catalog");
	return 0;
}

/* To read a hole of the file gives it a page. */
Test(client_restart, the_catalog_takes_little_more_memory_after_a_restart)
{
	uint64_t before;

	put(client, "test/a", 1);
	before = catalog_memory();
	daemon_kill_broker(&daemon_);
	cr_assert(eq(int, fsdp_ping(client), 0));
	cr_expect(le(u64, catalog_memory(), before + (64 << 10)));
}

Test(client_restart, the_log_lists_adopted_tensors_and_sessions)
{
	struct fsdp_client *others[5];
	char line[128];

	put(client, "test/a", 1);
	daemon_kill_broker(&daemon_);
	cr_assert(eq(int, fsdp_ping(client), 0));
	snprintf(line, sizeof(line),
		 "took over 1 tensor and 1 session: process %d (integration_tes"
		 ") of uid %u\n",
		 getpid(), geteuid());
	cr_expect(daemon_log_has(&daemon_, line), "%s", line);
	for (int i = 0; i < 5; i++)
		others[i] = connect_to(&daemon_, 0);
	daemon_kill_broker(&daemon_);
	cr_assert(eq(int, fsdp_ping(client), 0));
	cr_expect(daemon_log_has(&daemon_, "and 6 sessions: process "));
	cr_expect(daemon_log_has(&daemon_, ", and 2 more\n"));
	for (int i = 0; i < 5; i++)
		fsdp_close(others[i]);
}

Test(client_restart, calls_succeed_while_the_broker_is_killed_repeatedly)
{
	for (int i = 0; i < 4; i++) {
		struct fsdp_tensor *tensor = NULL;

		daemon_kill_broker(&daemon_);
		put(client, "test/a", (float)i);
		cr_assert(eq(int, get(client, "test/a", 0, &tensor), 0), "%s",
			  fsdp_error());
		cr_assert(eq(flt, first_of(tensor), (float)i));
		fsdp_free(tensor);
	}
	cr_assert(eq(int, count_limbo(client), 0));
}

Test(client_restart, without_a_broker_calls_time_out_but_releases_succeed)
{
	struct fsdp_client *impatient =
		connect_impatiently(daemon_socket(&daemon_), 50);
	struct fsdp_tensor *tensor = NULL;

	put(impatient, "test/a", 4);
	cr_assert(eq(int, get(impatient, "test/a", 0, &tensor), 0));
	fsdp_close(client);
	client = NULL;
	daemon_stop(&daemon_);
	cr_assert(lt(int, fsdp_ping(impatient), 0));
	cr_assert(eq(flt, first_of(tensor), 4));
	cr_assert(eq(int, fsdp_release(tensor), 0));
	fsdp_close(impatient);
	daemon_start(&daemon_);
}

static int stage_once(struct fsdp_client *of, int32_t timeout_ms,
		      struct fsdp_bundle **ret)
{
	const struct fsdp_bundle_options once = {.flags = FSDP_ONCE,
						 .timeout_ms = timeout_ms};

	return fsdp_bundle_begin(of, "test/model/", &once, ret);
}

static void begin_outage(void)
{
	must(kill(daemon_.pid, SIGSTOP) == 0);
	must(kill(daemon_broker_pid(&daemon_), SIGKILL) == 0);
}

/* Otherwise nobody could stage the bundle until this process has ended. */
Test(client_restart, an_abort_that_failed_is_done_by_the_next_broker)
{
	struct fsdp_client *impatient =
		connect_impatiently(daemon_socket(&daemon_), 50);
	struct fsdp_bundle *bundle;

	must(stage_once(impatient, 0, &bundle) == 0);
	begin_outage();
	fsdp_bundle_abort(bundle);
	must(kill(daemon_.pid, SIGCONT) == 0);
	while (fsdp_ping(impatient) != 0)
		;
	cr_assert(zero(int, stage_once(client, 0, &bundle)), "%s",
		  fsdp_error());
	fsdp_bundle_abort(bundle);
	fsdp_close(impatient);
}

static void *wait_to_stage(void *impatient)
{
	struct fsdp_bundle *bundle;

	return (void *)(intptr_t)stage_once(impatient, -1, &bundle);
}

/* The request is sent again, since the broker may have carried it out. */
Test(client_restart, a_wait_that_failed_is_not_continued)
{
	struct fsdp_client *impatient =
		connect_impatiently(daemon_socket(&daemon_), 50);
	struct fsdp_bundle *bundle;
	pthread_t thread;
	void *r;

	must(stage_once(client, 0, &bundle) == 0);
	must(pthread_create(&thread, NULL, wait_to_stage, impatient) == 0);
	wait_until_parked(1);
	begin_outage();
	must(pthread_join(thread, &r) == 0);
	cr_expect(lt(int, (int)(intptr_t)r, 0));
	must(kill(daemon_.pid, SIGCONT) == 0);
	while (fsdp_ping(impatient) != 0)
		;
	wait_until_parked(0);
	fsdp_bundle_abort(bundle);
	fsdp_close(impatient);
}

static int count_sleep(void *data)
{
	(*(int *)data)++;
	return 0;
}

/* A program that ends while there is no broker makes many releases, one after
 * another. Only the first waits for the broker. */
Test(client_restart, calls_during_an_outage_wait_for_one_common_time_out)
{
	int n_sleeps = 0;
	const struct fsdp_connect_options options = {
		.path = daemon_socket(&daemon_),
		.reconnect_ms = 50,
		.interrupted = count_sleep,
		.interrupted_data = &n_sleeps};
	struct fsdp_client *patient = NULL;

	cr_assert(eq(int, fsdp_connect(&options, &patient), 0));
	fsdp_close(client);
	client = NULL;
	daemon_stop(&daemon_);
	cr_assert(lt(int, fsdp_ping(patient), 0));
	cr_assert(gt(int, n_sleeps, 0));
	n_sleeps = 0;
	for (int i = 0; i < 3; i++)
		cr_assert(eq(int, fsdp_ping(patient), -ECONNREFUSED));
	fsdp_close(patient);
	cr_assert(eq(int, n_sleeps, 0));
	daemon_start(&daemon_);
}

/* The process that accepts the connection may be no broker, or a stopped one.
 * The call must report that, not that the name was not published in time. */
Test(client_lost, a_broker_that_does_not_reply_counts_as_unavailable)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	const char *path = daemon_socket(&daemon_), *name = "test/a";
	const struct fsdp_get_options options = {.timeout_ms = -1};
	struct fsdp_client *hurried = connect_impatiently(path, 50);
	struct fsdp_tensor *tensor = NULL;

	snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
	daemon_kill_broker(&daemon_);
	cr_assert(zero(int, unlink(path)));
	cr_assert(zero(int,
		       bind(fd, (struct sockaddr *)&address, sizeof(address))));
	cr_assert(zero(int, listen(fd, 1)));
	cr_assert(eq(int, fsdp_get(hurried, &name, 1, &options, &tensor),
		     -ECONNREFUSED));
	close(fd);
	daemon_restart(&daemon_);
	fsdp_close(hurried);
}

static int end_wait(void *data)
{
	(void)data;
	return 1;
}

static int ping_without_descriptors(struct fsdp_client *hurried)
{
	struct rlimit before, none;
	int r;

	cr_assert(zero(int, getrlimit(RLIMIT_NOFILE, &before)));
	none = before;
	none.rlim_cur = 0;
	cr_assert(zero(int, setrlimit(RLIMIT_NOFILE, &none)));
	r = fsdp_ping(hurried);
	cr_assert(zero(int, setrlimit(RLIMIT_NOFILE, &before)));
	return r;
}

/* The lack of descriptors does not mean that the broker is away, so the next
 * call waits for it again. */
Test(client_lost, a_lack_of_descriptors_does_not_use_up_the_reconnect_time)
{
	const struct fsdp_connect_options options = {
		.path = daemon_socket(&daemon_),
		.reconnect_ms = 100000,
		.interrupted = end_wait};
	struct fsdp_client *hurried = NULL;

	cr_assert(eq(int, fsdp_connect(&options, &hurried), 0));
	daemon_kill_broker(&daemon_);
	cr_assert(eq(int, ping_without_descriptors(hurried), -EMFILE));
	cr_assert(eq(int, fsdp_ping(hurried), -EINTR), "%s", fsdp_error());
	daemon_restart(&daemon_);
	fsdp_close(hurried);
}

/* Sets `path` to a link, which leads to this broker's socket from now on. */
static void link_to(const struct daemon *to, char *path, size_t size)
{
	snprintf(path, size, "%s/link", daemon_.dir);
	(void)unlink(path);
	cr_assert(eq(int, symlink(daemon_socket(to), path), 0));
}

/* The client must not send its holds to a broker that does not know it. The
 * memory stays readable, and every call reports what happened. */
Test(client_lost, a_broker_that_has_lost_its_state_ends_the_connection)
{
	char path[96];
	struct fsdp_connect_options options = {.path = path};
	struct fsdp_client *lost = NULL;
	struct fsdp_tensor *tensor = NULL;
	struct daemon first;

	daemon_start(&first);
	link_to(&first, path, sizeof(path));
	cr_assert(eq(int, fsdp_connect(&options, &lost), 0));
	put(lost, "test/a", 6);
	cr_assert(eq(int, get(lost, "test/a", 0, &tensor), 0));
	daemon_stop(&first);
	link_to(&daemon_, path, sizeof(path));
	cr_assert(eq(int, fsdp_ping(lost), -ESTALE));
	cr_assert(eq(int, fsdp_ping(lost), -ESTALE));
	cr_expect(strstr(fsdp_error(), "; connect again") != NULL);
	cr_assert(eq(flt, first_of(tensor), 6));
	fsdp_close(lost);
	cr_assert(eq(int, unlink(path), 0));
}

/* Gets a cached name until the client has looked at its connection, which it
 * does once in a second. */
static void get_without_broker(struct fsdp_client *reader)
{
	uint64_t end_ms = clock_ms() + 1100;

	while (clock_ms() < end_ms)
		cr_assert(eq(int, get_once(reader, "test/a"), 0), "%s",
			  fsdp_error());
}

Test(client_lost, gets_of_a_cached_name_notice_a_broker_without_the_session)
{
	char path[96];
	struct fsdp_connect_options options = {.path = path};
	struct fsdp_client *reader = NULL;
	struct daemon first;
	int r = 0;

	daemon_start(&first);
	link_to(&first, path, sizeof(path));
	cr_assert(eq(int, fsdp_connect(&options, &reader), 0));
	put(reader, "test/a", 6);
	cr_assert(eq(int, get_once(reader, "test/a"), 0));
	daemon_stop(&first);
	get_without_broker(reader);
	link_to(&daemon_, path, sizeof(path));
	put(client, "test/a", 7);
	while (r == 0)
		r = get_once(reader, "test/a");
	cr_expect(eq(int, r, -ESTALE));
	cr_expect(strstr(fsdp_error(), "; connect again") != NULL);
	cr_expect(eq(int, get_once(reader, "test/a"), -ESTALE));
	fsdp_close(reader);
	cr_assert(eq(int, unlink(path), 0));
}

/* --- kill -9 in the middle of a request ---------------------------------- */

static int sum_slots(const struct fsdp_peer *peer, void *data)
{
	*(uint64_t *)data += peer->n_slots;
	return 0;
}

static void use_everything(void)
{
	struct fsdp_tensor *tensor = make(client, &VECTOR, 1), *got = NULL;
	struct fsdp_ticket ticket;
	const char *name = "test/a";

	cr_assert(eq(int, publish(client, tensor, name, 0), 0), "%s",
		  fsdp_error());
	cr_assert(eq(int, fsdp_ticket_make(tensor, 1, 10000, &ticket), 0));
	fsdp_free(tensor);
	cr_assert(eq(int, get(client, name, 0, &got), 0), "%s", fsdp_error());
	cr_assert(eq(int, fsdp_release_sync(client, &got, 1), 0), "%s",
		  fsdp_error());
	fsdp_free(got);
	cr_assert(eq(int, fsdp_ticket_redeem(client, &ticket, 1, &got), 0),
		  "%s", fsdp_error());
	cr_assert(eq(int, fsdp_remove(client, &name, 1), 0), "%s",
		  fsdp_error());
	cr_assert(eq(flt, first_of(got), 1));
	cr_assert(eq(int, fsdp_release_sync(client, &got, 1), 0), "%s",
		  fsdp_error());
	fsdp_free(got);
}

static void check_one_kill(const char *point)
{
	char at[64], token[64], token_variable[96];
	const char *env[] = {at, token_variable, NULL};
	struct daemon_options options = {.is_supervised = true, .env = env};
	uint64_t n_slots = 0;
	struct daemon victim;
	bool was_killed;
	int fd;

	snprintf(token, sizeof(token), "%s/token", daemon_.dir);
	snprintf(at, sizeof(at), "FSDP_KILL_AT=%s", point);
	snprintf(token_variable, sizeof(token_variable), "FSDP_KILL_TOKEN=%s",
		 token);
	fd = open(token, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	cr_assert(ge(int, fd, 0));
	close(fd);
	daemon_start_with(&victim, &options);
	client = connect_to(&victim, 0);
	use_everything();
	cr_assert(eq(int, fsdp_clients(client, sum_slots, &n_slots), 0));
	fsdp_close(client);
	client = NULL;
	daemon_stop(&victim);
	was_killed = unlink(token) < 0;
	if (!was_killed)
		cr_skip_test("built without FSDP_TEST_POINTS");
	cr_assert(eq(u64, n_slots, 0), "held after a kill at %s", point);
}

Test(client_lost, a_broker_killed_within_a_request_keeps_holds_exact)
{
	static const char *const verbs[] = {"alloc",   "publish", "get",
					    "release", "remove",  "ticket",
					    "redeem"};
	char point[64];

	fsdp_close(client);
	client = NULL;
	for (size_t i = 0; i < sizeof(verbs) / sizeof(*verbs); i++) {
		snprintf(point, sizeof(point), "verb.%s.done", verbs[i]);
		check_one_kill(point);
		snprintf(point, sizeof(point), "verb.%s.committed", verbs[i]);
		check_one_kill(point);
	}
}

static void await_broker(struct fsdp_client *hurried)
{
	while (fsdp_ping(hurried) < 0)
		nap_ms(1);
}

/* No broker is started while the supervisor is stopped. */
static void check_late_release(const char *point)
{
	struct fsdp_tensor *held = NULL, *again = NULL;
	struct fsdp_client *hurried;
	struct chaos chaos;

	chaos_start(&chaos, NULL);
	hurried = connect_impatiently(daemon_socket(&chaos.daemon), 50);
	put(hurried, "test/a", 1);
	cr_assert(zero(int, get(hurried, "test/a", 0, &held)));
	plan_death(chaos.plan, point, 1);
	must(kill(chaos.daemon.pid, SIGSTOP) == 0);
	cr_expect(eq(int, fsdp_release_sync(hurried, &held, 1), -EINPROGRESS),
		  "%s: %s", point, fsdp_error());
	must(kill(chaos.daemon.pid, SIGCONT) == 0);
	cr_expect(eq(ptr, (void *)fsdp_data(held), NULL), "%s", point);
	await_broker(hurried);
	cr_expect(zero(i64, count_slot_holds(hurried, held)), "%s", point);
	fsdp_free(held);
	cr_assert(zero(int, get(hurried, "test/a", 0, &again)));
	cr_expect(eq(i64, count_slot_holds(hurried, again), 1), "%s", point);
	fsdp_close(hurried);
	chaos_stop(&chaos);
}

Test(client_lost, holds_of_a_release_without_a_reply_are_dropped_once)
{
	if (!chaos_has_points())
		cr_skip_test("points are not compiled in");
	check_late_release("verb.release.done");
	check_late_release("verb.release.committed");
}

/* --- connecting ---------------------------------------------------------- */

static char give_up_plan[64];

static void give_up(void *unused)
{
	const struct fsdp_connect_options options = {
		.path = daemon_socket(&daemon_), .reconnect_ms = 50};
	struct fsdp_client *mine;

	(void)unused;
	must(setenv("FSDP_STOP_PLAN", give_up_plan, 1) == 0);
	must(fsdp_connect(&options, &mine) < 0);
	(void)pause();
}

static int count_peer(const struct fsdp_peer *peer, void *ret)
{
	(void)peer;
	++*(uint32_t *)ret;
	return 0;
}

static void wait_until_connected(uint32_t wanted)
{
	uint32_t n = 0;

	while (n != wanted) {
		n = 0;
		must(fsdp_clients(client, count_peer, &n) == 0);
		nap_ms(1);
	}
}

/* The reply comes after the client has given up, and before it closes its
 * connection. */
Test(client_lost, a_client_that_gives_up_to_connect_leaves_no_session)
{
	pid_t broker = daemon_broker_pid(&daemon_), pid;
	int status;

	if (!chaos_has_points())
		cr_skip_test("built without points");
	(void)snprintf(give_up_plan, sizeof(give_up_plan), "%s/plan",
		       daemon_.dir);
	plan_write(give_up_plan, "handshake.given_up 1\n");
	cr_assert(zero(int, kill(broker, SIGSTOP)));
	pid = child_start(give_up, NULL);
	cr_assert(eq(int, waitpid(pid, &status, WUNTRACED), pid));
	cr_assert(WIFSTOPPED(status));
	cr_assert(zero(int, kill(broker, SIGCONT)));
	wait_until_connected(2);
	cr_assert(zero(int, kill(pid, SIGCONT)));
	wait_until_connected(1);
	cr_assert(zero(int, kill(pid, SIGKILL)));
	cr_assert(eq(int, waitpid(pid, &status, 0), pid));
}
