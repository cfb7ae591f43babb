/*
 * Tests the program fsdpd: its arguments, its socket, and memory for requests
 * that wait.
 */
#include "client/fsdp.h"
#include "tests/lib/actor.h"
#include "tests/lib/chaos.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"
#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static struct daemon daemon_;

/* Run fsdpd with two arguments. Returns its exit status. */
static int run(const char *first, const char *second)
{
	const char *program = daemon_program();
	pid_t pid = fork();
	int status = -1;

	if (pid == 0) {
		if (!freopen("/dev/null", "w", stdout) ||
		    !freopen("/dev/null", "w", stderr))
			_exit(99);
		execl(program, program, first, second, (char *)NULL);
		_exit(127);
	}
	waitpid(pid, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Check that fsdpd refuses to start on this socket, and that its message
 * contains `words`. `option` may be NULL. */
static void refuse_start(const char *path, const char *option,
			 const char *words)
{
	const char *program = daemon_program();
	int fds[2], status = -1;
	char text[1024];
	ssize_t n;
	pid_t pid;

	cr_assert(zero(int, pipe(fds)));
	pid = fork();
	if (pid == 0) {
		dup2(fds[1], STDERR_FILENO);
		execl(program, program, "--socket", path, option, (char *)NULL);
		_exit(127);
	}
	close(fds[1]);
	waitpid(pid, &status, 0);
	n = read(fds[0], text, sizeof(text) - 1);
	close(fds[0]);
	text[n > 0 ? n : 0] = '\0';
	cr_expect(eq(int, status, EXIT_FAILURE << 8));
	cr_expect(strstr(text, words) != NULL, "%s", text);
}

static struct fsdp_client *connect_to(const struct daemon *daemon)
{
	struct fsdp_connect_options options = {.path = daemon_socket(daemon)};
	struct fsdp_client *client = NULL;

	cr_assert(zero(int, fsdp_connect(&options, &client)), "%s",
		  fsdp_error());
	return client;
}

TestSuite(fsdpd, .timeout = 300);

Test(fsdpd, wrong_arguments_end_with_status_2)
{
	cr_assert(eq(int, run("--nonsense", NULL), 2));
	cr_assert(eq(int, run("--socket", NULL), 2));
	cr_assert(eq(int, run("word", NULL), 2));
	cr_assert(eq(int, run("--version", NULL), 0));
	cr_assert(eq(int, run("--help", NULL), 0));
}

Test(fsdpd, a_missing_configuration_file_is_refused)
{
	cr_assert(eq(int, run("--config", "/nonexistent/fsdpd.conf"), 1));
}

Test(fsdpd, a_service_that_cannot_start_waits_before_it_exits)
{
#ifndef FSDP_TEST_POINTS
	cr_skip_test("built without points");
#endif
	setenv("FSDP_KILL_AT", "fsdpd.waits", 1);
	cr_expect(eq(int, run("--config", "/nonexistent/fsdpd.conf"), 1));
	setenv("NOTIFY_SOCKET", "/nonexistent/notify.sock", 1);
	cr_expect(eq(int, run("--config", "/nonexistent/fsdpd.conf"), -1));
}

Test(fsdpd, a_socket_that_cannot_be_created_is_refused_with_a_remedy)
{
	refuse_start("/proc/nobody/folder/sock", NULL,
		     "cannot make the directory /proc/nobody/folder for the "
		     "socket: No such file or directory; name a socket");
	refuse_start("/proc/sock", NULL, "cannot make the socket /proc/sock: ");
	refuse_start("", NULL, "the path of the socket is empty; name one");
}

Test(fsdpd, the_error_for_no_writable_folder_names_the_variable_to_set)
{
	char folder[] = "/tmp/fsdpd-test-XXXXXX";
	char path[sizeof(folder) + 5];

	cr_assert(ne(ptr, mkdtemp(folder), NULL));
	snprintf(path, sizeof(path), "%s/sock", folder);
	setenv("XDG_RUNTIME_DIR", "/proc/nobody", 1);
	refuse_start(path, "--supervised",
		     "cannot make a directory like /proc/nobody/fsdpd-");
	setenv("XDG_RUNTIME_DIR", "", 1);
	setenv("TMPDIR", "/proc/none", 1);
	refuse_start(path, "--supervised",
		     "No such file or directory; set XDG_RUNTIME_DIR, or else "
		     "TMPDIR, to one that you may write to");
	cr_expect(zero(int, rmdir(folder)), "the socket is removed");
}

Test(fsdpd, the_log_names_the_socket)
{
	char path[80], wanted[112], line[256] = "";
	FILE *file;

	daemon_start(&daemon_);
	fsdp_close(connect_to(&daemon_));
	snprintf(path, sizeof(path), "%s/log", daemon_.dir);
	snprintf(wanted, sizeof(wanted), "fsdpd: listening at %s\n",
		 daemon_socket(&daemon_));
	file = fopen(path, "re");
	cr_assert(file != NULL);
	while (strcmp(line, wanted) != 0 && fgets(line, sizeof(line), file))
		;
	cr_expect(eq(str, line, wanted));
	fclose(file);
	daemon_stop(&daemon_);
}

static int connect_and_stay(void)
{
	(void)connect_to(&daemon_);
	return 0;
}

/* Only without its sandbox can the broker read how a process ended for which
 * its parent has not waited yet. */
Test(fsdpd, the_log_tells_how_a_client_ended)
{
	struct actor actor = {.fd = -1};
	char line[96];

	daemon_start_with(&daemon_,
			  &(struct daemon_options){.config = "[access]\n"
							     "sandbox = no\n"});
	actor_start(&actor, NULL);
	cr_assert(zero(int, actor_run(&actor, connect_and_stay)));
	snprintf(line, sizeof(line),
		 "of uid %d was killed by signal 9 (Killed) without a goodbye",
		 (int)getuid());
	cr_assert(zero(int, kill(actor.pid, SIGKILL)));
	while (!daemon_log_has(&daemon_, line))
		nap_ms(1);
	actor_kill(&actor);
	daemon_stop(&daemon_);
}

/* Returns the process, which has ended without a goodbye. */
static pid_t connect_and_end(bool is_killed)
{
	pid_t pid = fork();

	if (pid == 0) {
		(void)connect_to(&daemon_);
		if (is_killed)
			raise(SIGKILL);
		_exit(0);
	}
	cr_assert(eq(int, waitpid(pid, NULL, 0), pid));
	return pid;
}

Test(fsdpd, the_log_does_not_mention_clients_that_exit_normally)
{
	char normal[32], killed[32];

	daemon_start(&daemon_);
	snprintf(normal, sizeof(normal), "process %d (",
		 (int)connect_and_end(false));
	snprintf(killed, sizeof(killed), "process %d (",
		 (int)connect_and_end(true));
	while (!daemon_log_has(&daemon_, "without a goodbye"))
		nap_ms(1);
	if (daemon_log_has(&daemon_, "has ended without a goodbye"))
		cr_skip_test("Linux before 6.15 forgets how processes ended");
	cr_expect(daemon_log_has(&daemon_, killed));
	cr_expect(not(daemon_log_has(&daemon_, normal)));
	daemon_stop(&daemon_);
}

Test(fsdpd, a_second_broker_on_the_same_path_is_refused)
{
	struct fsdp_client *client;

	daemon_start(&daemon_);
	cr_assert(eq(int, run("--socket", daemon_socket(&daemon_)), 1));
	client = connect_to(&daemon_);
	cr_assert(zero(int, fsdp_ping(client)));
	fsdp_close(client);
	daemon_stop(&daemon_);
}

Test(fsdpd, a_file_that_is_not_a_socket_is_not_removed)
{
	char path[] = "/tmp/fsdpd-file-XXXXXX";

	close(mkstemp(path));
	cr_assert(eq(int, run("--socket", path), 1));
	cr_assert(zero(int, unlink(path)));
}

Test(fsdpd, the_socket_file_of_a_killed_broker_is_replaced)
{
	daemon_start(&daemon_);
	daemon_kill_broker(&daemon_);
	cr_assert(zero(int, access(daemon_socket(&daemon_), F_OK)));
	daemon_restart(&daemon_);
	fsdp_close(connect_to(&daemon_));
	daemon_stop(&daemon_);
}

/* If SIGHUP killed the broker, it would die before its next reply. The
 * supervisor has survived SIGHUP if it restarts a broker that is killed. */
Test(fsdpd, closing_the_terminal_loses_no_tensor)
{
	struct fsdp_spec spec = {FSDP_U8, 1, {8}};
	struct fsdp_client *client;
	struct fsdp_tensor *tensor;
	pid_t broker;

	daemon_start_supervised(&daemon_);
	client = connect_to(&daemon_);
	broker = daemon_broker_pid(&daemon_);
	cr_assert(zero(int, fsdp_alloc(client, &spec, 1, NULL, 0, &tensor)));
	strcpy(fsdp_data_mut(tensor), "kept");
	cr_assert(zero(int, kill(daemon_.pid, SIGHUP)));
	cr_assert(zero(int, kill(broker, SIGHUP)));
	cr_assert(zero(int, fsdp_ping(client)));
	cr_expect(eq(int, daemon_broker_pid(&daemon_), broker));
	daemon_kill_broker(&daemon_);
	cr_assert(zero(int, fsdp_ping(client)), "%s", fsdp_error());
	cr_expect(eq(str, (char *)fsdp_data(tensor), "kept"));
	fsdp_free(tensor);
	fsdp_close(client);
	daemon_stop(&daemon_);
}

Test(fsdpd, a_supervised_broker_that_stops_promises_no_restart)
{
	struct fsdp_spec spec = {FSDP_U8, 1, {8}};
	struct fsdp_client *client;
	struct fsdp_tensor *tensor;
	siginfo_t info;

	daemon_start_supervised(&daemon_);
	client = connect_to(&daemon_);
	cr_assert(zero(int, fsdp_alloc(client, &spec, 1, NULL, 0, &tensor)));
	cr_assert(zero(int, kill(daemon_.pid, SIGTERM)));
	cr_assert(zero(int, waitid(P_PID, (id_t)daemon_.pid, &info,
				   WEXITED | WNOWAIT)));
	cr_expect(daemon_log_has(&daemon_, "stopping: Terminated; 1 tensor "));
	cr_expect(!daemon_log_has(&daemon_, "unless fsdpd is started again"));
	fsdp_free(tensor);
	fsdp_close(client);
	daemon_stop(&daemon_);
}

/* --- a supervisor without descriptors ------------------------------------ */

/* Returns one more than the highest descriptor of the supervisor. */
static rlim_t count_numbers(void)
{
	char path[32];
	struct dirent *entry;
	rlim_t n = 0;
	DIR *folder;

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)daemon_.pid);
	folder = opendir(path);
	cr_assert(folder != NULL);
	while ((entry = readdir(folder))) {
		rlim_t number = strtoul(entry->d_name, NULL, 10);

		n = number >= n ? number + 1 : n;
	}
	closedir(folder);
	return n;
}

/* Kill the broker while the supervisor may have only this number of
 * descriptors, and wait for a line in the log. */
static void restart_with(rlim_t n, const char *line)
{
	struct rlimit old, few;

	cr_assert(zero(int, prlimit(daemon_.pid, RLIMIT_NOFILE, NULL, &old)));
	few = (struct rlimit){n, old.rlim_max};
	cr_assert(zero(int, prlimit(daemon_.pid, RLIMIT_NOFILE, &few, NULL)));
	daemon_kill_broker(&daemon_);
	while (!daemon_log_has(&daemon_, line))
		cr_assert(zero(int, kill(daemon_.pid, 0)));
	cr_assert(zero(int, prlimit(daemon_.pid, RLIMIT_NOFILE, &old, NULL)));
}

/* With this number of descriptors the supervisor cannot start the broker again.
 * When it has more, it does, and nothing is lost. */
static void check_late_restart(rlim_t n, const char *line)
{
	struct fsdp_spec spec = {FSDP_U8, 1, {8}};
	struct fsdp_client *client = connect_to(&daemon_);
	struct fsdp_tensor *tensor;
	struct chaos chaos;

	cr_assert(zero(int, fsdp_alloc(client, &spec, 1, NULL, 0, &tensor)));
	strcpy(fsdp_data_mut(tensor), "kept");
	/* These are the catalog, the state table and a chunk. */
	chaos.daemon = daemon_;
	cr_assert(keeps_await(&chaos, 3));
	restart_with(n ? n : count_numbers(), line);
	cr_expect(zero(int, access(daemon_socket(&daemon_), F_OK)));
	cr_assert(zero(int, fsdp_ping(client)), "%s", fsdp_error());
	cr_expect(eq(str, (char *)fsdp_data(tensor), "kept"));
	fsdp_free(tensor);
	fsdp_close(client);
}

/* The child needs twice the number of the kept descriptors. */
Test(fsdpd, a_broker_that_gets_no_descriptors_is_started_again)
{
	daemon_start_supervised(&daemon_);
	check_late_restart(0, "descriptors to the broker: Too many open files");
	daemon_stop(&daemon_);
}

Test(fsdpd, a_broker_that_cannot_be_watched_is_started_again)
{
	daemon_start_supervised(&daemon_);
	check_late_restart(STDERR_FILENO + 1, "cannot watch the broker");
	daemon_stop(&daemon_);
}

/* Start fsdpd with a descriptor that was kept for it under the name
 * "worker". */
static pid_t start_with_worker(int pidfd, const char *path)
{
	pid_t pid = fork();
	char own[16];

	if (pid != 0)
		return pid;
	snprintf(own, sizeof(own), "%d", (int)getpid());
	unsetenv("NOTIFY_SOCKET");
	setenv("LISTEN_PID", own, 1);
	setenv("LISTEN_FDS", "1", 1);
	setenv("LISTEN_FDNAMES", "worker", 1);
	dup2(pidfd, 3);
	execl(daemon_program(), "fsdpd", "--socket", path, (char *)NULL);
	_exit(127);
}

Test(fsdpd, the_worker_of_an_earlier_broker_is_killed_and_not_used_as_socket)
{
	char path[] = "/tmp/fsdpd-dir-XXXXXX/sock", *slash = strrchr(path, '/');
	struct fsdp_connect_options options = {.path = path};
	struct fsdp_client *client = NULL;
	pid_t worker = fork(), pid;
	int status;

	if (worker == 0) {
		for (;;)
			pause();
	}
	*slash = '\0';
	cr_assert(mkdtemp(path) != NULL);
	*slash = '/';
	pid = start_with_worker(pidfd_open(worker, 0), path);
	cr_assert(eq(int, (int)waitpid(worker, &status, 0), (int)worker));
	cr_assert(eq(int, WTERMSIG(status), SIGKILL));
	while (fsdp_connect(&options, &client) < 0)
		cr_assert(zero(int, (int)waitpid(pid, NULL, WNOHANG)));
	fsdp_close(client);
	kill(pid, SIGTERM);
	waitpid(pid, &status, 0);
	cr_assert(zero(int, status));
	*slash = '\0';
	cr_assert(zero(int, rmdir(path)));
}

/* --- waiting for room ---------------------------------------------------- */

#define BIG (INT64_C(48) << 20)

struct big_alloc {
	struct fsdp_client *client;
	int64_t size;
	struct fsdp_tensor *tensor;
	int r;
};

static void *allocate(void *data)
{
	struct big_alloc *it = data;
	struct fsdp_spec spec = {FSDP_U8, 1, {it->size}};

	it->r = fsdp_alloc(it->client, &spec, 1, NULL, -1, &it->tensor);
	return NULL;
}

static int count_waiting(const struct fsdp_peer *peer, void *data)
{
	*(uint32_t *)data += peer->n_waiting;
	return 0;
}

static void wait_until_parked(struct fsdp_client *client, uint32_t n)
{
	uint32_t n_waiting = 0;

	while (n_waiting < n) {
		n_waiting = 0;
		cr_assert(zero(
			int, fsdp_clients(client, count_waiting, &n_waiting)));
	}
}

/* The broker may use 100 MiB. One large tensor fits, two do not, and a small
 * one fits next to the first. */
Test(fsdpd, an_allocation_that_waits_for_memory_does_not_block_a_smaller_one)
{
	const struct daemon_options options = {
		.config = "[memory]\nmemory_max = 100M\nchunk_min = 64M\n"
			  "[quota]\nquota_bytes = 60M\n",
	};
	struct big_alloc first = {.size = BIG}, second = {.size = BIG},
			 small = {.size = 1 << 20};
	pthread_t thread;

	daemon_start_with(&daemon_, &options);
	first.client = second.client = small.client = connect_to(&daemon_);
	allocate(&first);
	cr_assert(zero(int, first.r), "%s", fsdp_error());
	pthread_create(&thread, NULL, allocate, &second);
	wait_until_parked(first.client, 1);
	allocate(&small);
	cr_assert(zero(int, small.r), "%s", fsdp_error());
	fsdp_free(first.tensor);
	pthread_join(thread, NULL);
	cr_assert(zero(int, second.r));
	fsdp_free(second.tensor);
	fsdp_free(small.tensor);
	fsdp_close(first.client);
	daemon_stop(&daemon_);
}
