/*
 * Rows direct_death*: from the kill of a rank until another, which sleeps in a
 * barrier, has returned with the name of the dead. The floor is from the same
 * kill until this process, which sleeps by the victim's pidfd, is awake.
 * direct_death_p99 is how much later the slowest in a hundred are told than the
 * pidfd tells its own slowest. The victim of direct_death_1GiB has memory of
 * its own, which the kernel frees before the pidfd reports the death.
 */
#include "bench.h"
#include "child.h"
#include "daemon.h"
#include "fsdp.h"
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct fsdp_comm *join(struct fsdp_client *client, uint32_t rank)
{
	struct fsdp_comm *comm;

	must(fsdp_comm_join(client, "death", 2, rank, NULL, &comm), "join");
	return comm;
}

struct scene {
	struct daemon daemon;
	struct child survivor;
	size_t size; /* memory of the victim */
};

static void be_victim(int sock_fd, void *data)
{
	const struct scene *scene = data;
	char *memory = mmap(NULL, scene->size + 1, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		die("there is no memory for the victim");
	memset(memory, 1, scene->size + 1);
	(void)join(client_open(scene->daemon.socket), 1);
	message_send(sock_fd, "r", 1);
	pause();
}

/* Join a run with each victim, and report when its death was told. */
static void be_survivor(int sock_fd, void *data)
{
	const struct scene *scene = data;
	struct fsdp_client *client = client_open(scene->daemon.socket);
	uint64_t told;
	char go;

	for (;;) {
		struct fsdp_comm *comm;

		message_receive(sock_fd, &go, 1);
		comm = join(client, 0);
		if (fsdp_barrier(comm, -1) != -ECONNABORTED)
			die("a barrier without the victim was passed");
		told = now_ns();
		message_send(sock_fd, &told, sizeof(told));
		fsdp_comm_leave(comm);
	}
}

static void kill_one(const struct bench *bench, struct scene *scene,
		     struct pairs *pairs)
{
	struct pollfd poll_fd = {.events = POLLIN};
	uint64_t killed, seen, told;
	struct child victim;
	char ready;

	child_start(&victim, bench->client_cpu, be_victim, scene);
	message_send(scene->survivor.sock_fd, "g", 1);
	message_receive(victim.sock_fd, &ready, 1);
	sleep_us(2000); /* so that the survivor sleeps */
	poll_fd.fd =
		sys((int)syscall(SYS_pidfd_open, victim.pid, 0), "pidfd_open");
	killed = now_ns();
	kill(victim.pid, SIGKILL);
	sys(poll(&poll_fd, 1, -1), "poll");
	seen = now_ns();
	message_receive(scene->survivor.sock_fd, &told, sizeof(told));
	samples_add(&pairs->floor, (double)(seen - killed));
	samples_add(&pairs->ours, (double)(told - killed));
	close(poll_fd.fd);
	child_kill(&victim);
}

static void scene_open(struct scene *scene, const struct bench *bench)
{
	daemon_start(&scene->daemon, bench, &(struct daemon_options){0});
	child_start(&scene->survivor, bench->second_cpu, be_survivor, scene);
}

static void scene_close(struct scene *scene)
{
	child_kill(&scene->survivor);
	daemon_stop(&scene->daemon);
}

static void kill_all(const struct bench *bench, size_t size, unsigned n_pairs,
		     int n_kills, struct result *ret)
{
	struct scene scene = {.size = size};
	struct pairs pairs = PAIRS_NULL;

	scene_open(&scene, bench);
	for (unsigned i = 0; i < n_pairs; i++) {
		for (int j = 0; j < n_kills; j++)
			kill_one(bench, &scene, &pairs);
		pairs_close(&pairs);
	}
	scene_close(&scene);
	pairs_result(&pairs, 1000, ret);
	pairs_deinit(&pairs);
}

#define N_KILLS 10 /* of a pair */

void direct_death(const struct bench *bench, struct result *ret)
{
	kill_all(bench, 0, bench->n_pairs, N_KILLS, ret);
}

/* Compute the quantile of our times, and subtract that of the pidfd's times. */
static double later_ms(struct pairs *pairs, double q)
{
	return (samples_quantile(&pairs->ours, q) -
		samples_quantile(&pairs->floor, q)) /
	       1e6;
}

#define LATER_MS 1

void direct_death_p99(const struct bench *bench, struct result *ret)
{
	struct pairs kills = PAIRS_NULL;
	struct scene scene = {0};

	scene_open(&scene, bench);
	for (unsigned i = 0; i < bench->n_pairs * N_KILLS; i++)
		kill_one(bench, &scene, &kills);
	scene_close(&scene);
	*ret = (struct result){
		.median = later_ms(&kills, 0.5),
		.p99 = later_ms(&kills, 0.99),
		.floor = LATER_MS,
		.n = kills.ours.n,
	};
	ret->ratio = ret->p99 / LATER_MS;
	pairs_deinit(&kills);
}

/* This row has fewer pairs, because a kill may take seconds. */
#define LARGE_PAIRS 5

void direct_death_1gib(const struct bench *bench, struct result *ret)
{
	size_t size = bench->is_quick ? 256 << 20 : 1 << 30;

	kill_all(bench, size, LARGE_PAIRS, 1, ret);
}
