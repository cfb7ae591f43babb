/*
 * Row direct_death: from the kill of a rank until another, which sleeps in a
 * barrier, has returned with the name of the dead. The floor is from the same
 * kill until this process, which sleeps by the victim's pidfd, is awake.
 */
#include "bench.h"
#include "child.h"
#include "daemon.h"
#include "fsdp.h"
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct fsdp_comm *join(struct fsdp_client *client, uint32_t rank)
{
	struct fsdp_comm *comm;

	must(fsdp_comm_join(client, "death", 2, rank, NULL, &comm), "join");
	return comm;
}

static void be_victim(int sock_fd, void *data)
{
	const struct daemon *daemon = data;

	(void)join(client_open(daemon->socket), 1);
	message_send(sock_fd, "r", 1);
	pause();
}

/* Join a run with each victim, and report when its death was told. */
static void be_survivor(int sock_fd, void *data)
{
	const struct daemon *daemon = data;
	struct fsdp_client *client = client_open(daemon->socket);
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

static void kill_one(const struct bench *bench, struct daemon *daemon,
		     const struct child *survivor, struct pairs *pairs)
{
	struct pollfd poll_fd = {.events = POLLIN};
	uint64_t killed, seen, told;
	struct child victim;
	char ready;

	child_start(&victim, bench->client_cpu, be_victim, daemon);
	message_send(survivor->sock_fd, "g", 1);
	message_receive(victim.sock_fd, &ready, 1);
	sleep_us(2000); /* so that the survivor sleeps */
	poll_fd.fd =
		sys((int)syscall(SYS_pidfd_open, victim.pid, 0), "pidfd_open");
	killed = now_ns();
	kill(victim.pid, SIGKILL);
	sys(poll(&poll_fd, 1, -1), "poll");
	seen = now_ns();
	message_receive(survivor->sock_fd, &told, sizeof(told));
	samples_add(&pairs->floor, (double)(seen - killed));
	samples_add(&pairs->ours, (double)(told - killed));
	close(poll_fd.fd);
	child_kill(&victim);
}

void direct_death(const struct bench *bench, struct result *ret)
{
	struct pairs pairs = PAIRS_NULL;
	struct child survivor;
	struct daemon daemon;

	daemon_start(&daemon, bench, &(struct daemon_options){0});
	child_start(&survivor, bench->second_cpu, be_survivor, &daemon);
	for (unsigned i = 0; i < bench->n_pairs; i++) {
		for (int j = 0; j < 10; j++)
			kill_one(bench, &daemon, &survivor, &pairs);
		pairs_close(&pairs);
	}
	pairs_result(&pairs, 1000, ret);
	pairs_deinit(&pairs);
	child_kill(&survivor);
	daemon_stop(&daemon);
}
