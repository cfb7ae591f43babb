/*
 * Tests a broker that runs out of descriptors: what must still work, and how
 * many each user may use.
 */
#include "tests/lib/chaos.h"
#include "tests/lib/check.h"
#include "tests/lib/ranks.h"
#include "tests/lib/wire.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#define N_SESSIONS 110
/* These are enough for a broker to start and to serve one or two clients, but
 * not for a pidfd of each session. */
#define FEW 120

static struct chaos chaos;

static void tear_down(void)
{
	chaos_stop(&chaos);
}

TestSuite(descriptors, .fini = tear_down, .timeout = 300);

static void need_points(void)
{
	if (!chaos_has_points())
		cr_skip_test("built without FSDP_TEST_POINTS");
}

static bool has_taken_over(void)
{
	struct passages passages;

	passages_read(chaos.points, &passages);
	for (size_t i = 0; i < passages.n; i++) {
		if (strcmp(passages.list[i].name, "adopt.end") == 0)
			return true;
	}
	return false;
}

/* Kill the broker. The next one has few descriptors. */
static void restart_with_few(void)
{
	const struct rlimit few = {FEW, FEW};

	passages_forget(chaos.points);
	cr_assert(zero(int,
		       prlimit(chaos.daemon.pid, RLIMIT_NOFILE, &few, NULL)));
	daemon_kill_broker(&chaos.daemon);
	while (!has_taken_over())
		nap_ms(1);
}

/* Make twice as many tensors as the sessions had. If the broker had freed the
 * memory of those, this would overwrite it. */
static void overwrite(struct fsdp_client *client)
{
	for (int i = 0; i < 2 * N_SESSIONS; i++)
		pattern_make(client, 0);
}

static void die_with_it(void *data)
{
	int *fds = data;
	struct fsdp_client *client = chaos_connect(&chaos);

	pattern_make(client, 7);
	must(write(fds[1], "x", 1) == 1);
	for (;;)
		pause();
}

Test(descriptors,
     that_are_too_few_after_a_restart_lose_no_memory_of_live_processes)
{
	struct fsdp_client *clients[N_SESSIONS], *stranger;
	struct fsdp_tensor *tensors[N_SESSIONS];
	int fds[2];
	pid_t child;
	char byte;

	need_points();
	chaos_start(&chaos, NULL);
	for (int i = 0; i < N_SESSIONS; i++) {
		clients[i] = chaos_connect(&chaos);
		tensors[i] = pattern_make(clients[i], (uint64_t)i + 1);
	}
	cr_assert(zero(int, pipe(fds)));
	child = child_start(die_with_it, fds);
	cr_assert(eq(int, (int)read(fds[0], &byte, 1), 1));
	restart_with_few();
	stranger = chaos_connect(&chaos);
	overwrite(stranger);
	for (int i = 0; i < N_SESSIONS; i++)
		cr_expect(pattern_is(tensors[i], (uint64_t)i + 1), "%d", i);
	cr_assert(zero(u64, status_value(stranger, "dead_sessions")));
	/* The death of a client that has not reconnected is noticed, too. */
	child_kill(child);
	cr_assert(status_await(stranger, "sessions", N_SESSIONS + 1));
	for (int i = 0; i < N_SESSIONS; i++) {
		cr_assert(zero(int, fsdp_ping(clients[i])), "%s", fsdp_error());
		fsdp_close(clients[i]);
	}
	cr_assert(status_await(stranger, "sessions", 1));
	fsdp_close(stranger);
}

/* Descriptors are available again when the client has reconnected. */
static void reconnect_with(const char *failure)
{
	struct fsdp_tensor *tensor;
	struct fsdp_client *client;

	need_points();
	setenv("FSDP_FAIL_AT", failure, 1);
	chaos_start(&chaos, NULL);
	unsetenv("FSDP_FAIL_AT");
	client = chaos_connect(&chaos);
	tensor = pattern_make(client, 1);
	daemon_kill_broker(&chaos.daemon);
	cr_assert(zero(int, fsdp_ping(client)), "%s", fsdp_error());
	cr_expect(pattern_is(tensor, 1));
	cr_expect(eq(u64, status_value(client, "dropped_peers"), 1));
	fsdp_close(client);
}

Test(descriptors, that_are_missing_during_a_reconnect_do_not_end_the_session)
{
	reconnect_with("hello.copy:1:EMFILE");
}

Test(descriptors, that_the_system_lacks_during_a_reconnect_do_not_end_it)
{
	reconnect_with("hello.copy:1:ENFILE");
}

Test(descriptors, that_unread_messages_hold_for_a_moment_refuse_no_memory)
{
	struct fsdp_client *client;

	need_points();
	chaos_start(&chaos, NULL);
	client = chaos_connect(&chaos);
	plan_write(chaos.failures, "fdstore.put 1 ETOOMANYREFS\n"
				   "fdstore.put 1 ETOOMANYREFS\n");
	cr_expect(pattern_is(pattern_make(client, 1), 1));
	cr_expect(plan_is_done(chaos.failures));
	fsdp_close(client);
}

/* Returns the limit of open files below which the broker has `n` unused
 * descriptor numbers. */
static rlim_t limit_that_leaves(pid_t pid, unsigned int n)
{
	unsigned int n_free = 0;
	rlim_t number = 0;
	struct stat st;
	char path[64];

	for (;; number++) {
		snprintf(path, sizeof(path), "/proc/%d/fd/%lu", (int)pid,
			 (unsigned long)number);
		n_free += lstat(path, &st) < 0;
		if (n_free > n)
			return number;
	}
}

static bool logs(const char *text)
{
	char path[64], line[512];
	bool is_found = false;
	FILE *file;

	snprintf(path, sizeof(path), "%s/log", chaos.daemon.dir);
	file = fopen(path, "re");
	must(file);
	while (!is_found && fgets(line, sizeof(line), file))
		is_found = strstr(line, text);
	fclose(file);
	return is_found;
}

static void *ping(void *data)
{
	static int r;

	r = fsdp_ping(data);
	return &r;
}

/* This connection uses the last descriptor. */
Test(descriptors, that_are_missing_for_those_of_a_session_do_not_end_it)
{
	struct fsdp_tensor *tensor;
	struct fsdp_client *client;
	struct rlimit low, before;
	pthread_t thread;
	pid_t broker;
	void *r;

	need_points();
	chaos_start(&chaos, NULL);
	client = chaos_connect(&chaos);
	tensor = pattern_make(client, 1);
	passages_forget(chaos.points);
	daemon_kill_broker(&chaos.daemon);
	while (!has_taken_over())
		nap_ms(1);
	broker = daemon_broker_pid(&chaos.daemon);
	cr_assert(zero(int, prlimit(broker, RLIMIT_NOFILE, NULL, &before)));
	low = before;
	low.rlim_cur = limit_that_leaves(broker, 1);
	cr_assert(zero(int, prlimit(broker, RLIMIT_NOFILE, &low, NULL)));
	cr_assert(zero(int, pthread_create(&thread, NULL, ping, client)));
	while (!logs("were cut off"))
		nap_ms(1);
	cr_assert(zero(int, prlimit(broker, RLIMIT_NOFILE, &before, NULL)));
	cr_assert(zero(int, pthread_join(thread, &r)));
	cr_expect(zero(int, *(int *)r), "%d", *(int *)r);
	cr_expect(pattern_is(tensor, 1));
	fsdp_close(client);
}

/* Connect while only `n` descriptors are free. Returns the error code. */
static int connect_with(unsigned int n)
{
	const struct fsdp_connect_options options = {
		.path = daemon_socket(&chaos.daemon)};
	struct fsdp_client *client;
	struct rlimit low, before;
	int r;

	cr_assert(zero(int, getrlimit(RLIMIT_NOFILE, &before)));
	low = before;
	low.rlim_cur = limit_that_leaves(getpid(), n);
	cr_assert(zero(int, setrlimit(RLIMIT_NOFILE, &low)));
	r = fsdp_connect(&options, &client);
	cr_assert(zero(int, setrlimit(RLIMIT_NOFILE, &before)));
	if (r == 0)
		fsdp_close(client);
	return r;
}

Test(descriptors, that_are_missing_in_a_client_leave_no_session)
{
	struct fsdp_client *client;
	unsigned int n = 0;
	int r;

	chaos_start(&chaos, NULL);
	client = chaos_connect(&chaos);
	while ((r = connect_with(n)) < 0) {
		cr_expect(eq(int, r, -EMFILE), "%u: %s", n, fsdp_error());
		n++;
	}
	/* Up to this number the client could connect, but lacked descriptors
	 * for its session. */
	cr_expect(gt(uint, n, 2));
	cr_expect(status_await(client, "sessions", 1));
	fsdp_close(client);
}

Test(descriptors, a_lack_of_memory_in_a_client_leaves_no_session)
{
	struct fsdp_client *client;

	need_points();
	chaos_start(&chaos, NULL);
	client = chaos_connect(&chaos);
	setenv("FSDP_FAIL_AT", "memfd.map:*:ENOMEM", 1);
	cr_expect(eq(int, connect_with(100), -ENOMEM));
	unsetenv("FSDP_FAIL_AT");
	cr_expect(status_await(client, "sessions", 1));
	fsdp_close(client);
}

/* A client that has reconnected is watched at once, by its connection. */
Test(descriptors, of_a_process_are_received_with_its_connection)
{
	struct fsdp_client *client;

	need_points();
	chaos_start(&chaos, NULL);
	client = chaos_connect(&chaos);
	restart_with_few();
	cr_assert(zero(int, fsdp_ping(client)));
	fsdp_close(client);
}

/* Send a hello, and end. The parent waits for the process before the broker
 * sees the connection. */
static void greet_and_end(void *data)
{
	const struct request hello = {.kind = MESSAGE_HELLO,
				      .hello = {.major = PROTOCOL_MAJOR}};
	struct wire *wire = wire_connect(daemon_socket(data));

	wire_send(wire, &hello);
}

/* Returns whether the kernel opens a pidfd of a peer for which its parent has
 * waited. */
static bool has_pidfds_of_reaped(void)
{
	int major = 0, minor = 0;
	struct utsname name;

	cr_assert(zero(int, uname(&name)));
	(void)sscanf(name.release, "%d.%d", &major, &minor);
	return major > 6 || (major == 6 && minor >= 16);
}

Test(descriptors, of_a_process_that_has_ended_are_received_too)
{
	struct fsdp_client *client;

	if (!has_pidfds_of_reaped())
		cr_skip_test("needs Linux 6.16");
	chaos_start(&chaos, NULL);
	client = chaos_connect(&chaos);
	kill(daemon_broker_pid(&chaos.daemon), SIGSTOP);
	cr_assert(child_run(greet_and_end, &chaos.daemon));
	kill(daemon_broker_pid(&chaos.daemon), SIGCONT);
	cr_expect(status_await(client, "dropped_peers", 1));
	cr_expect(eq(u64, status_value(client, "sessions"), 1));
	cr_expect(logs(" has ended"));
	cr_expect(not(logs("cannot open a pidfd")));
	fsdp_close(client);
}

static int see_note(const char *name, uint64_t value, void *data)
{
	(void)name;
	(void)value;
	(void)data;
	return 0;
}

Test(descriptors, that_are_too_few_for_the_quota_cause_a_note)
{
	struct rlimit low = {500, 500};
	struct fsdp_client *client;
	char *note = NULL;

	cr_assert(zero(int, setrlimit(RLIMIT_NOFILE, &low)));
	chaos_start(&chaos, NULL);
	client = chaos_connect(&chaos);
	cr_assert(zero(int, fsdp_status(client, see_note, NULL, &note)));
	cr_expect(
		ne(ptr, strstr(note, "the limit of descriptors is 500"), NULL),
		"%s", note);
	cr_expect(
		ne(ptr, strstr(note, "quota_sessions (1024) needs 6160"), NULL),
		"%s", note);
	free(note);
	fsdp_close(client);
}

Test(descriptors, may_be_few_for_a_small_quota_of_sessions)
{
	struct rlimit low = {3000, 3000};
	struct fsdp_client *client;
	char *note = NULL;

	cr_assert(zero(int, setrlimit(RLIMIT_NOFILE, &low)));
	chaos_start(&chaos, "[quota]\nquota_sessions = 100\n");
	client = chaos_connect(&chaos);
	cr_assert(zero(int, fsdp_status(client, see_note, NULL, &note)));
	cr_expect(eq(ptr, strstr(note, "the limit of descriptors"), NULL), "%s",
		  note);
	free(note);
	fsdp_close(client);
}
