/*
 * Rows of a node with 1,000,000 tensors and 4,000 sessions at once. Replies
 * that people wait for must come in less than a second, all tensors must be
 * served again soon after a restart, and allocating and freeing at full rate
 * must leave no memory in use. A quick run has a twentieth of both numbers.
 */
#include "bench.h"
#include "child.h"
#include "daemon.h"
#include "fsdp.h"
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PREFIX     "model.layers.attention"
#define N_CHILDREN 8
#define N_RUNS     3
#define ANSWER_MS  1000
#define RESTART_MS 2000
#define CONFIG                                                                 \
	"[quota]\nquota_slots = 1048576\nquota_sessions = 4095\n"              \
	"sessions_reserved = 0\n"

struct crowd {
	struct daemon daemon;
	struct child children[N_CHILDREN];
	size_t n_each; /* sessions that each child opens */
	size_t n_tensors;
	struct fsdp_client *client;
	uint64_t rss_before; /* resident memory before there were tensors */
};

static void be_sessions(int sock_fd, void *data)
{
	const struct crowd *crowd = data;

	for (size_t i = 0; i < crowd->n_each; i++)
		(void)client_open(crowd->daemon.socket);
	message_send(sock_fd, "r", 1);
	pause();
}

static void start_sessions(struct crowd *crowd, const struct bench *bench)
{
	char ready;

	crowd->n_each = (bench->is_quick ? 200 : 4000) / N_CHILDREN;
	for (int i = 0; i < N_CHILDREN; i++)
		child_start(&crowd->children[i], bench->client_cpu, be_sessions,
			    crowd);
	for (int i = 0; i < N_CHILDREN; i++)
		message_receive(crowd->children[i].sock_fd, &ready, 1);
}

static void crowd_start(struct crowd *crowd, const struct bench *bench)
{
	const struct daemon_options options = {.is_supervised = true,
					       .config = CONFIG};

	daemon_start(&crowd->daemon, bench, &options);
	crowd->client = client_open(crowd->daemon.socket);
	crowd->n_tensors = bench->is_quick ? 50000 : 1000000;
	publish_many(crowd->client, "few", 1, 64);
	crowd->rss_before = process_rss(process_child(crowd->daemon.pid));
	publish_many(crowd->client, PREFIX, crowd->n_tensors, 64);
	start_sessions(crowd, bench);
}

static void crowd_stop(struct crowd *crowd)
{
	for (int i = 0; i < N_CHILDREN; i++)
		child_kill(&crowd->children[i]);
	fsdp_close(crowd->client);
	daemon_stop(&crowd->daemon);
}

/* --- what a person asks -------------------------------------------------- */

static void become_fsdpctl(const struct crowd *crowd, char **arguments)
{
	char path[PATH_MAX];
	int fd = open("/dev/null", O_WRONLY);

	(void)dup2(fd, STDOUT_FILENO);
	setenv("FSDP_SOCKET", crowd->daemon.socket, 1);
	execv(bench_beside("fsdpctl", path), arguments);
	_exit(127);
}

/* Runs a command. Returns the milliseconds from its start to its end. */
static double run_fsdpctl(const struct crowd *crowd, char **arguments)
{
	uint64_t start = now_ns();
	pid_t pid = sys(fork(), "fork");
	int status;

	if (pid == 0)
		become_fsdpctl(crowd, arguments);
	waitpid(pid, &status, 0);
	if (status != 0)
		die("fsdpctl %s ended with wait status %#x", arguments[1],
		    (unsigned int)status);
	return (double)(now_ns() - start) / 1e6;
}

static void ask(const struct bench *bench, char **arguments, struct result *ret)
{
	struct samples samples = SAMPLES_NULL;
	struct crowd crowd;

	crowd_start(&crowd, bench);
	for (int i = 0; i < N_RUNS; i++)
		samples_add(&samples, run_fsdpctl(&crowd, arguments));
	absolute_result(&samples, samples_quantile(&samples, 0.5), ANSWER_MS,
			ret);
	samples_deinit(&samples);
	crowd_stop(&crowd);
}

#define ARGUMENTS(...) ((char *[]){(char *)"fsdpctl", __VA_ARGS__, NULL})

void scale_ls(const struct bench *bench, struct result *ret)
{
	ask(bench, ARGUMENTS((char *)"ls"), ret);
}

void scale_status(const struct bench *bench, struct result *ret)
{
	ask(bench, ARGUMENTS((char *)"status"), ret);
}

void scale_who(const struct bench *bench, struct result *ret)
{
	ask(bench, ARGUMENTS((char *)"who", (char *)PREFIX "/00012345"), ret);
}

void scale_top(const struct bench *bench, struct result *ret)
{
	ask(bench,
	    ARGUMENTS((char *)"top", (char *)"--batch", (char *)"--pages",
		      (char *)"1"),
	    ret);
}

/* Measures a screen of the largest of all tensors. */
void scale_top_tensors(const struct bench *bench, struct result *ret)
{
	ask(bench,
	    ARGUMENTS((char *)"top", (char *)"--batch", (char *)"--pages",
		      (char *)"1", (char *)"--rows", (char *)"50",
		      (char *)"--view", (char *)"tensors"),
	    ret);
}

void scale_metrics(const struct bench *bench, struct result *ret)
{
	ask(bench, ARGUMENTS((char *)"metrics"), ret);
}

/* --- memory and restart -------------------------------------------------- */

/* Counts all of the broker's memory except the tensors' own. */
void scale_bytes_per_tensor(const struct bench *bench, struct result *ret)
{
	struct samples samples = SAMPLES_NULL;
	struct crowd crowd;
	double bytes;

	crowd_start(&crowd, bench);
	bytes = ((double)process_rss(process_child(crowd.daemon.pid)) -
		 (double)crowd.rss_before) /
		(double)crowd.n_tensors;
	samples_add(&samples, bytes);
	absolute_result(&samples, bytes, 640, ret);
	samples_deinit(&samples);
	crowd_stop(&crowd);
}

/* Measures from kill -9 of the broker until a client that was connected before
 * has one of the tensors. */
static double restart_crowd(const struct crowd *crowd)
{
	const char *name = PREFIX "/00012345";
	uint64_t start = now_ns();
	struct fsdp_tensor *tensor;

	kill(process_child(crowd->daemon.pid), SIGKILL);
	must(fsdp_ping(crowd->client), "ping after a restart");
	must(fsdp_get(crowd->client, &name, 1, NULL, &tensor), "get");
	start = now_ns() - start;
	fsdp_free(tensor);
	return (double)start / 1e6;
}

/* Each kill has a broker of its own, here and below, because a supervisor waits
 * before it restarts a broker that has died twice in ten seconds. */
void scale_restart(const struct bench *bench, struct result *ret)
{
	struct samples samples = SAMPLES_NULL;
	struct crowd crowd;

	for (int i = 0; i < N_RUNS; i++) {
		crowd_start(&crowd, bench);
		samples_add(&samples, restart_crowd(&crowd));
		crowd_stop(&crowd);
	}
	absolute_result(&samples, samples_quantile(&samples, 0.5), RESTART_MS,
			ret);
	samples_deinit(&samples);
}

/* --- restart without sessions -------------------------------------------- */

struct memory {
	int fd;
	size_t size;
};

static struct memory memory_make(size_t size)
{
	struct memory memory = {
		.fd = sys(memfd_create("floor", MFD_CLOEXEC), "memfd_create"),
		.size = size,
	};

	sys(ftruncate(memory.fd, (off_t)size), "ftruncate");
	sys(posix_fallocate(memory.fd, 0, (off_t)size), "posix_fallocate");
	return memory;
}

/* Read a byte of each cache line. */
static void be_reader(int sock_fd, void *data)
{
	const struct memory *memory = data;
	const volatile char *bytes =
		mmap(NULL, memory->size, PROT_READ, MAP_SHARED, memory->fd, 0);

	(void)sock_fd;
	sys(bytes == MAP_FAILED ? -1 : 0, "mmap");
	for (size_t i = 0; i < memory->size; i += 64)
		(void)bytes[i];
}

static double read_once(const struct bench *bench, struct memory *memory)
{
	uint64_t start = now_ns();
	struct child child;

	child_start(&child, bench->server_cpu, be_reader, memory);
	child_wait(&child);
	return (double)(now_ns() - start) / 1e6;
}

/* Measures from kill -9 of the broker until a new client has one of the
 * tensors. */
static double restart_once(const struct daemon *daemon)
{
	const char *name = PREFIX "/00012345";
	uint64_t start = now_ns();
	struct fsdp_tensor *tensor;
	struct fsdp_client *client;

	kill(process_child(daemon->pid), SIGKILL);
	client = client_open(daemon->socket);
	must(fsdp_get(client, &name, 1, NULL, &tensor), "get");
	start = now_ns() - start;
	fsdp_free(tensor);
	fsdp_close(client);
	return (double)start / 1e6;
}

static void restart_pair(const struct bench *bench, struct pairs *pairs)
{
	const struct daemon_options options = {.is_supervised = true,
					       .config = CONFIG};
	struct fsdp_client *client;
	struct memory memory;
	struct daemon daemon;

	daemon_start(&daemon, bench, &options);
	client = client_open(daemon.socket);
	publish_many(client, PREFIX, bench->is_quick ? 50000 : 1000000, 64);
	fsdp_close(client);
	memory = memory_make(process_rss(process_child(daemon.pid)));
	(void)read_once(bench, &memory); /* the first read clears the pages */
	samples_add(&pairs->floor, read_once(bench, &memory));
	samples_add(&pairs->ours, restart_once(&daemon));
	pairs_close(pairs);
	close(memory.fd);
	daemon_stop(&daemon);
}

/* Measures the restart of a broker whose tensors no client uses, so that only
 * their names keep them. The floor is a process that reads as much memory as
 * the broker has for them. */
void scale_restart_idle(const struct bench *bench, struct result *ret)
{
	struct pairs pairs = PAIRS_NULL;

	for (int i = 0; i < N_RUNS; i++)
		restart_pair(bench, &pairs);
	pairs_result(&pairs, 1, ret);
	pairs_deinit(&pairs);
}

/* --- memory that comes and goes ------------------------------------------ */

#define CHURN_SIZE  65536
#define CHURN_WARM  20000
#define CHURN_S     600
#define CHURN_LIMIT 1 /* MiB */

static void churn(struct fsdp_client *client)
{
	const struct fsdp_spec spec = {
		.dtype = FSDP_U8, .n_dims = 1, .shape = {CHURN_SIZE}};
	struct fsdp_tensor *tensor;

	must(fsdp_alloc(client, &spec, 1, NULL, 10000, &tensor), "alloc");
	must(fsdp_release_sync(client, &tensor, 1), "release");
	fsdp_free(tensor);
}

/* Measures the growth of the broker's memory while 64 KiB are allocated and
 * released as fast as possible. */
void alloc_churn_growth(const struct bench *bench, struct result *ret)
{
	uint64_t end, before;
	struct samples samples = SAMPLES_NULL;
	struct fsdp_client *client;
	struct daemon daemon;
	double mib;

	alarm(2 * CHURN_S); /* other rows have a shorter time limit */
	daemon_start(&daemon, bench, &(struct daemon_options){0});
	client = client_open(daemon.socket);
	for (int i = 0; i < CHURN_WARM; i++)
		churn(client);
	before = process_rss(daemon.pid);
	end = now_ns() + (bench->is_quick ? 2 : CHURN_S) * 1000000000ull;
	while (now_ns() < end)
		churn(client);
	mib = ((double)process_rss(daemon.pid) - (double)before) / (1 << 20);
	samples_add(&samples, mib);
	absolute_result(&samples, mib, CHURN_LIMIT, ret);
	samples_deinit(&samples);
	fsdp_close(client);
	daemon_stop(&daemon);
}
