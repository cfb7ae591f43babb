/*
 * Tests the lifetime of fsdp-worker. It never outlives its broker, even if one
 * of the two hangs or is killed.
 */
#include "tests/fakes/oom_score.h"
#include "tests/lib/chaos.h"
#include "tests/lib/check.h"
#include "tests/lib/ranks.h"
#include "tests/lib/trainer.h"
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct daemon daemon_;
static struct ranks ranks;

static const struct fsdp_param_spec PARAMS[] = {
	{.name = "weight", .spec = {FSDP_F32, 2, {64, 16}}},
};
/* The cast makes a gather necessary. */
static const struct layer LAYERS[] = {
	{"l0", PARAMS, 1, {.param_dtype = FSDP_BF16}},
};

static int unshard0(void)
{
	return trainer_unshard(0);
}

static void start(const struct daemon_options *options)
{
	struct crew crew = {
		.daemon = &daemon_,
		.comm = "test",
		.layers = LAYERS,
		.n_layers = 1,
	};

	/* Otherwise the ranks would do the work. */
	setenv("FSDP_TEST_EXECUTOR", "worker", 1);
	daemon_start_with(&daemon_, options);
	crew_set(&crew);
	ranks_start(&ranks, 2);
	cr_assert(eq(int, ranks_run(&ranks, trainer_join), 0));
	cr_assert(eq(int, ranks_run(&ranks, trainer_commit), 0));
}

static pid_t worker;
static int worker_fd; /* its pidfd */

/* Start ranks that have gathered once, and note the worker. */
static void start_worker(bool is_supervised)
{
	start(&(struct daemon_options){.is_supervised = is_supervised});
	cr_assert(eq(int, ranks_run(&ranks, unshard0), 0));
	worker = worker_await(&daemon_);
	worker_fd = pidfd_open(worker, 0);
	cr_assert(ge(int, worker_fd, 0));
}

static bool is_gone(int timeout_ms)
{
	struct pollfd fd = {.fd = worker_fd, .events = POLLIN};

	return poll(&fd, 1, timeout_ms) == 1;
}

TestSuite(engine, .timeout = 300);

Test(engine, stopping_the_broker_ends_the_worker)
{
	start_worker(false);
	daemon_stop(&daemon_);
	cr_expect(is_gone(0));
	ranks_stop(&ranks);
}

Test(engine, stopping_the_broker_does_not_wait_for_a_worker_that_hangs)
{
	start_worker(true);
	cr_assert(zero(int, kill(worker, SIGSTOP)));
	daemon_stop(&daemon_);
	cr_expect(is_gone(0));
	ranks_stop(&ranks);
}

Test(engine, killing_the_broker_ends_the_worker)
{
	start_worker(false);
	cr_assert(zero(int, kill(worker, SIGSTOP)));
	daemon_kill_broker(&daemon_);
	cr_assert(is_gone(-1));
	ranks_stop(&ranks);
	daemon_restart(&daemon_);
	daemon_stop(&daemon_);
}

/* --- in the sandbox ------------------------------------------------------- */

/* On a node without a driver the broker limits its files, too. */
static void start_worker_with(const char *config, const char *setting)
{
	const char *const env[] = {"FSDP_LIBCUDA=/none", setting, NULL};

	start(&(struct daemon_options){.config = config, .env = env});
	cr_assert(eq(int, ranks_run(&ranks, unshard0), 0));
	worker = worker_await(&daemon_);
}

static void start_confined_worker(const char *setting)
{
	start_worker_with(NULL, setting);
}

static int oom_score_adj(pid_t pid)
{
	char path[64];
	int value;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/oom_score_adj", (int)pid);
	file = fopen(path, "re");
	cr_assert(ne(ptr, file, NULL));
	cr_assert(eq(int, fscanf(file, "%d", &value), 1));
	fclose(file);
	return value;
}

/* A real protection would need CAP_SYS_RESOURCE, so a preloaded library makes
 * processes read and write a lower score than they have. */
Test(engine, the_worker_does_not_inherit_protection_from_the_oom_killer)
{
	int unprotected = oom_score_adj(getpid());
	char preload[PATH_MAX];

	if (!daemon_preload("oom_score", preload))
		cr_skip_test("sanitizers must be loaded first");
	start_confined_worker(preload);
	cr_expect(eq(int, oom_score_adj(daemon_broker_pid(&daemon_)),
		     unprotected));
	cr_expect(eq(int, oom_score_adj(worker), OOM_SCORE_LESS));
	ranks_stop(&ranks);
	daemon_stop(&daemon_);
}

static int count_filters(pid_t pid)
{
	char path[64], line[256];
	int n = -1;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	file = fopen(path, "re");
	cr_assert(ne(ptr, file, NULL));
	while (n < 0 && fgets(line, sizeof(line), file))
		(void)sscanf(line, "Seccomp_filters: %d", &n);
	fclose(file);
	return n;
}

Test(engine, the_worker_has_one_filter_more_than_its_broker)
{
	start_confined_worker(NULL);
	if (daemon_log_has(&daemon_, "no sandbox"))
		cr_skip_test("a build with sanitizers has none");
	if (count_filters(worker) < 0)
		cr_skip_test("this kernel does not count filters");
	cr_expect(eq(int, count_filters(worker),
		     count_filters(daemon_broker_pid(&daemon_)) + 1));
	ranks_stop(&ranks);
	daemon_stop(&daemon_);
}

Test(engine, the_worker_of_a_broker_without_a_sandbox_has_no_sandbox)
{
	start_worker_with("[access]\nsandbox = no\n", NULL);
	cr_expect(eq(int, count_filters(worker),
		     count_filters(daemon_broker_pid(&daemon_))));
	ranks_stop(&ranks);
	daemon_stop(&daemon_);
}

#ifdef FSDP_TEST_POINTS
/* Both try to execute a program whose name is NULL, which fails with EFAULT if
 * the filter permits the call. */
Test(engine, the_worker_unlike_its_broker_may_not_start_programs)
{
	char text[128];

	snprintf(text, sizeof(text), "FSDP_SANDBOX_TRY=%d", SYS_execve);
	start_confined_worker(text);
	if (daemon_log_has(&daemon_, "no sandbox"))
		cr_skip_test("a build with sanitizers has none");
	snprintf(text, sizeof(text), "fsdpd: tried the system call %d: %s",
		 SYS_execve, strerror(EFAULT));
	cr_expect(daemon_log_has(&daemon_, text));
	snprintf(text, sizeof(text),
		 "fsdp-worker: tried the system call %d: %s", SYS_execve,
		 strerror(EPERM));
	cr_expect(daemon_log_has(&daemon_, text));
	ranks_stop(&ranks);
	daemon_stop(&daemon_);
}
#endif

static bool has_thread(pid_t pid, const char *name)
{
	char command[128];

	snprintf(command, sizeof(command),
		 "cat /proc/%d/task/*/comm | grep -qx %s", (int)pid, name);
	return system(command) == 0;
}

Test(engine, the_threads_of_a_worker_have_names)
{
	start_confined_worker(NULL);
	while (!has_thread(worker, "fsdp-task/0"))
		cr_assert(zero(int, kill(worker, 0)));
	ranks_stop(&ranks);
	daemon_stop(&daemon_);
}

/* --- descriptors ---------------------------------------------------------- */

/* Returns how many pidfds the supervisor has. One is its broker's. */
static int count_pidfds(void)
{
	char path[64], text[64];
	struct dirent *entry;
	int n = 0;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)daemon_.pid);
	dir = opendir(path);
	cr_assert(ne(ptr, dir, NULL));
	while ((entry = readdir(dir))) {
		ssize_t size = readlinkat(dirfd(dir), entry->d_name, text,
					  sizeof(text) - 1);

		text[size > 0 ? size : 0] = '\0';
		n += strstr(text, "pidfd") != NULL;
	}
	closedir(dir);
	return n;
}

static void await_pidfds(int n)
{
	while (count_pidfds() != n)
		nap_ms(1);
}

Test(engine, the_descriptor_of_a_live_worker_is_stored_for_the_next_broker)
{
	start_worker(true);
	await_pidfds(2);
	cr_assert(zero(int, kill(worker, SIGKILL)));
	await_pidfds(1);
	ranks_stop(&ranks);
	daemon_stop(&daemon_);
}

#ifdef FSDP_TEST_POINTS
static struct fsdp_client *client;
static struct fsdp_comm *comm;
static struct fsdp_group *groups[2];

static void join_alone(const char *socket)
{
	const struct fsdp_connect_options options = {.path = socket};
	const struct fsdp_policy cast = {.param_dtype = FSDP_BF16};
	struct fsdp_work work;

	must(fsdp_connect(&options, &client) == 0);
	must(fsdp_comm_join(client, "test", 1, 0, NULL, &comm) == 0);
	for (int i = 0; i < 2; i++)
		must(fsdp_group_register(comm, i ? "l1" : "l0", PARAMS, 1,
					 &cast, &groups[i]) == 0);
	must(fsdp_commit(comm, 1, &work) == 0);
	must(fsdp_wait(&work, -1) == 0);
}

/* The failpoint lets the worker's queue appear full, as if other communicators
 * had filled it. */
Test(engine, a_job_waits_if_the_queue_of_the_worker_is_full)
{
	struct fsdp_work first, second;

	setenv("FSDP_FAIL_AT", "engine.room:1:16", 1);
	daemon_start(&daemon_);
	join_alone(daemon_socket(&daemon_));
	cr_assert(zero(int, fsdp_unshard(groups[0], &first)), "%s",
		  fsdp_error());
	/* When the ping has its reply, the broker has tried to queue the first
	 * unshard. */
	must(fsdp_ping(client) == 0);
	cr_assert(zero(int, fsdp_unshard(groups[1], &second)));
	cr_expect(zero(int, fsdp_wait(&second, -1)), "%s", fsdp_error());
	cr_expect(zero(int, fsdp_wait(&first, -1)), "%s", fsdp_error());
	fsdp_close(client);
	daemon_stop(&daemon_);
}
#endif

static void check_limits(bool is_supervised)
{
	struct rlimit own, limit;

	cr_assert(zero(int, getrlimit(RLIMIT_NOFILE, &own)));
	own.rlim_cur = own.rlim_max - 1;
	cr_assert(zero(int, setrlimit(RLIMIT_NOFILE, &own)));
	start_worker(is_supervised);
	cr_assert(zero(int, prlimit(daemon_broker_pid(&daemon_), RLIMIT_NOFILE,
				    NULL, &limit)));
	cr_expect(eq(u64, limit.rlim_cur, own.rlim_max));
	cr_assert(zero(int, prlimit(worker, RLIMIT_NOFILE, NULL, &limit)));
	cr_expect(eq(u64, limit.rlim_cur, own.rlim_cur));
	cr_expect(eq(u64, limit.rlim_max, own.rlim_max));
	ranks_stop(&ranks);
	daemon_stop(&daemon_);
}

Test(engine, the_worker_has_the_limit_of_descriptors_that_the_broker_was_given)
{
	check_limits(false);
}

Test(engine, the_worker_of_a_supervised_broker_has_its_limit_of_descriptors)
{
	check_limits(true);
}

static int join_again(void)
{
	trainer_leave();
	return trainer_join();
}

Test(engine, a_restarted_broker_ends_the_earlier_worker)
{
	start_worker(true);
	await_pidfds(2);
	cr_assert(zero(int, kill(worker, SIGSTOP)));
	daemon_kill_broker(&daemon_);
	cr_assert(is_gone(-1));
	cr_assert(eq(int, ranks_run(&ranks, join_again), 0));
	cr_assert(eq(int, ranks_run(&ranks, unshard0), 0));
	cr_expect(ne(int, (int)worker_await(&daemon_), (int)worker));
	await_pidfds(2);
	ranks_stop(&ranks);
	daemon_stop(&daemon_);
}

Test(engine, the_error_of_a_collective_names_the_missing_worker_program)
{
	static const char *const env[] = {"FSDP_WORKER=/nowhere/fsdp-worker",
					  NULL};

	start(&(struct daemon_options){.env = env});
	ranks_begin(&ranks, unshard0);
	ranks_end(&ranks);
	for (uint32_t i = 0; i < 2; i++) {
		cr_expect(lt(int, ranks.notes[i].code, 0));
		cr_expect(ne(ptr,
			     strstr(ranks.notes[i].sentence,
				    "/nowhere/fsdp-worker"),
			     NULL),
			  "%s", ranks.notes[i].sentence);
	}
	ranks_stop(&ranks);
	daemon_stop(&daemon_);
}
