/*
 * Rows whose limit is a fixed number: how long it takes until the broker has
 * handled a client's death or its own, and what an idle broker costs.
 */
#include "bench.h"
#include "child.h"
#include "daemon.h"
#include "fsdp.h"
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* --- death_reclaim_1000 -------------------------------------------------- */

/*
 * The broker may use 64 MiB. A victim allocates most of it as 1,000 slots,
 * publishes them and removes their names, so that its holds alone keep them.
 * Then another client requests half of all memory and is parked. The time runs
 * from the victim's pidfd, as this process sees it, until that allocation has
 * returned: then the victim's memory is in use again. (The broker may see the
 * death earlier than we do; that counts as 0.)
 */
#define N_SLOTS   1000
#define SLOT_SIZE 65000
#define WANTED    (32 << 20)
#define LIMIT_US  1000
#define DEATH_CONFIG                                                           \
	"[memory]\nmemory_max = 64M\nchunk_min = 64M\nchunk_max = 64M\n"

static void hold_slots(struct fsdp_client *client, size_t first, size_t n)
{
	struct fsdp_spec specs[FSDP_MAX_BATCH];
	struct fsdp_tensor *tensors[FSDP_MAX_BATCH];
	struct fsdp_publication publications[FSDP_MAX_BATCH] = {0};
	char texts[FSDP_MAX_BATCH][NAME_SIZE];
	const char *names[FSDP_MAX_BATCH];

	for (size_t i = 0; i < n; i++)
		specs[i] = (struct fsdp_spec){
			.dtype = FSDP_U8, .n_dims = 1, .shape = {SLOT_SIZE}};
	must(fsdp_alloc(client, specs, n, NULL, 10000, tensors), "alloc");
	for (size_t i = 0; i < n; i++) {
		name_format(texts[i], "victim", first + i);
		names[i] = texts[i];
		publications[i].tensor = tensors[i];
		publications[i].name = names[i];
	}
	must(fsdp_publish(client, publications, n), "publish");
	must(fsdp_remove(client, names, n), "remove");
}

static void be_victim(int sock_fd, void *data)
{
	const struct daemon *daemon = data;
	struct fsdp_client *client = client_open(daemon->socket);

	for (size_t i = 0; i < N_SLOTS; i += FSDP_MAX_BATCH)
		hold_slots(client, i,
			   N_SLOTS - i < FSDP_MAX_BATCH ? N_SLOTS - i
							: FSDP_MAX_BATCH);
	message_send(sock_fd, "r", 1);
	pause();
}

/* Allocate memory each time the parent requests it, and report when the
 * allocation is done. */
static void be_heir(int sock_fd, void *data)
{
	const struct daemon *daemon = data;
	struct fsdp_client *client = client_open(daemon->socket);
	struct fsdp_spec spec = {
		.dtype = FSDP_U8, .n_dims = 1, .shape = {WANTED}};
	struct fsdp_tensor *tensor;
	uint64_t t;
	char go;

	while (recv(sock_fd, &go, 1, 0) == 1) {
		must(fsdp_alloc(client, &spec, 1, NULL, 20000, &tensor),
		     "alloc what the victim had");
		t = now_ns();
		must(fsdp_release_sync(client, &tensor, 1), "release");
		fsdp_free(tensor);
		message_send(sock_fd, &t, sizeof(t));
	}
}

static double kill_one(const struct bench *bench, struct daemon *daemon,
		       const struct child *heir)
{
	struct child victim;
	struct pollfd poll_fd = {.events = POLLIN};
	uint64_t dead, reused;
	char ready;

	child_start(&victim, bench->client_cpu, be_victim, daemon);
	message_receive(victim.sock_fd, &ready, 1);
	message_send(heir->sock_fd, "g", 1);
	sleep_us(2000); /* waits until the request is parked */
	poll_fd.fd =
		sys((int)syscall(SYS_pidfd_open, victim.pid, 0), "pidfd_open");
	kill(victim.pid, SIGKILL);
	sys(poll(&poll_fd, 1, -1), "poll");
	dead = now_ns();
	message_receive(heir->sock_fd, &reused, sizeof(reused));
	close(poll_fd.fd);
	child_kill(&victim);
	return reused > dead ? (double)(reused - dead) / 1000 : 0;
}

void death_reclaim_1000(const struct bench *bench, struct result *ret)
{
	struct daemon_options options = {.config = DEATH_CONFIG};
	struct samples samples = SAMPLES_NULL;
	struct daemon daemon;
	struct child heir;

	daemon_start(&daemon, bench, &options);
	child_start(&heir, bench->second_cpu, be_heir, &daemon);
	for (int i = 0; i < (bench->is_quick ? 20 : 100); i++)
		samples_add(&samples, kill_one(bench, &daemon, &heir));
	absolute_result(&samples, samples_quantile(&samples, 0.99), LIMIT_US,
			ret);
	samples_deinit(&samples);
	child_kill(&heir);
	daemon_stop(&daemon);
}

/* --- idle_wakeups -------------------------------------------------------- */

#define IDLE_S 10

/* The count of a thread is lost when the thread ends, so the measurement is
 * repeated then. */
static uint64_t idle_switches(pid_t pid)
{
	uint32_t n_before, n_after;
	uint64_t start, end;

	do {
		start = process_switches(pid, &n_before);
		sleep_us(IDLE_S * 1000000);
		end = process_switches(pid, &n_after);
	} while (n_after < n_before);
	return end - start;
}

/*
 * Counts how often the threads of an idle broker, with a client and some
 * tensors, went to sleep within 10 s. Each sleep follows a wake-up.
 */
void idle_wakeups(const struct bench *bench, struct result *ret)
{
	struct fsdp_client *client;
	struct daemon daemon;
	double n;

	daemon_start(&daemon, bench, &(struct daemon_options){0});
	client = client_open(daemon.socket);
	publish_many(client, "idle", 1000, 64);
	sleep_us(500000);
	n = (double)idle_switches(daemon.pid);
	*ret = (struct result){.median = n, .p99 = n, .ratio = n, .n = 1};
	fsdp_close(client);
	daemon_stop(&daemon);
}

/* --- broker_rss_per_100k ------------------------------------------------- */

#define N_TENSORS 100000
#define LIMIT_MIB 64

/*
 * Measures the growth of the broker's resident memory by 100,000 named tensors.
 * All of it counts, heap and shared (catalog, state table, ref-counter file),
 * except the mapped chunks, which are the tensors' memory.
 */
void broker_rss_per_100k(const struct bench *bench, struct result *ret)
{
	struct samples samples = SAMPLES_NULL;
	struct fsdp_client *client;
	struct daemon daemon;
	uint64_t before;
	double mib;

	daemon_start(&daemon, bench, &(struct daemon_options){0});
	client = client_open(daemon.socket);
	publish_many(client, "few", 1, 64);
	before = process_rss(daemon.pid);
	publish_many(client, "model.layers.attention.weights", N_TENSORS, 64);
	mib = ((double)process_rss(daemon.pid) - (double)before) / (1 << 20);
	samples_add(&samples, mib);
	absolute_result(&samples, mib, LIMIT_MIB, ret);
	samples_deinit(&samples);
	fsdp_close(client);
	daemon_stop(&daemon);
}

/* --- restart_10k --------------------------------------------------------- */

#define N_BLOCKS   10000
#define RESTART_MS 100

/* Get all tensors in a client that has got none before. */
static void get_all(struct fsdp_client *client)
{
	struct fsdp_tensor *tensors[FSDP_MAX_BATCH];
	char texts[FSDP_MAX_BATCH][NAME_SIZE];
	const char *names[FSDP_MAX_BATCH];

	for (size_t i = 0; i < N_BLOCKS; i += FSDP_MAX_BATCH) {
		size_t n = N_BLOCKS - i;

		if (n > FSDP_MAX_BATCH)
			n = FSDP_MAX_BATCH;
		for (size_t j = 0; j < n; j++) {
			name_format(texts[j], "block", i + j);
			names[j] = texts[j];
		}
		must(fsdp_get(client, names, n, NULL, tensors), "get");
		for (size_t j = 0; j < n; j++)
			fsdp_free(tensors[j]);
	}
}

/* Each kill has a broker of its own, because a supervisor gives up on one that
 * dies five times in ten seconds. */
static double restart_one(const struct bench *bench)
{
	struct daemon_options options = {.is_supervised = true};
	struct fsdp_client *owner, *reader;
	struct daemon daemon;
	uint64_t start, end;
	pid_t broker;

	daemon_start(&daemon, bench, &options);
	owner = client_open(daemon.socket);
	publish_many(owner, "block", N_BLOCKS, 64);
	reader = client_open(daemon.socket);
	broker = process_child(daemon.pid);
	if (broker == 0)
		die("the supervisor has no child");
	start = now_ns();
	kill(broker, SIGKILL);
	get_all(reader);
	end = now_ns();
	fsdp_close(reader);
	fsdp_close(owner);
	daemon_stop(&daemon);
	return (double)(end - start) / 1e6;
}

/*
 * Measures from the kill -9 of a supervised broker until a connected client has
 * got all of 10,000 tensors, 256 in a request.
 */
void restart_10k(const struct bench *bench, struct result *ret)
{
	struct samples samples = SAMPLES_NULL;

	for (int i = 0; i < (bench->is_quick ? 7 : 21); i++)
		samples_add(&samples, restart_one(bench));
	absolute_result(&samples, samples_quantile(&samples, 0.5), RESTART_MS,
			ret);
	samples_deinit(&samples);
}
